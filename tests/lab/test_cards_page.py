"""Tests check a number of docs/CARDS.md, and the record from which its tables are made."""

from dataclasses import replace

import measure
import pytest
from click.testing import CliRunner
from pages import cards
from stand_in import Compilers, on_a_machine
from tiers import exhaustive

from tl_attention.kernels.registry import LOWERINGS
from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure import session
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.records import Row, problem_of, read_rows
from tl_attention.problem.card import CARDS
from tl_attention.problem.mask import FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.named import resolve

__all__ = ["on_a_machine"]


def row(name: str, arch: str, registers: int | None, dtype: str = "float16", mask: Mask = FULL, **fields) -> Row:
    problem = problem_of(AttentionShape(1, 1, 128, 128, 128, dtype, mask))
    label = resolve(name).schedule.label
    made = {"registers": registers, "stack_bytes": 8, "shared_bytes": 65_536, "fingerprint": "0123456789ab"}
    status = "compiled" if registers else "refused"
    versions = {"tilelang": "0.1.15"}
    common = {"arch": arch, "nvcc": "13.0.88", "ptxas": "13.0.88", "versions": versions}
    return Row(name, label, "runtime", problem, status, **({} if registers is None else made), **common, **fields)


def test_the_blocks_of_an_sm_count_the_producer_and_the_mbarriers() -> None:
    """`short_d64` has 128 threads that compute and 128 that load; two blocks fit an SM, of 128 registers a thread."""
    problem = problem_of(AttentionShape(1, 1, 128, 128, 64))
    rows = [replace(row("short_d64", "sm_90a", registers), problem=problem) for registers in (128, 136, 168)]
    assert [*map(cards.blocks_per_sm, rows)] == [2, 1, 1]


@exhaustive
@pytest.mark.parametrize("fails", [False, True])
def test_the_tool_records_what_the_compilers_made_for_each_card(fails, tmp_path, monkeypatch, on_a_machine) -> None:
    asked = []

    class Some(Compilers):
        def compiled(self, candidate) -> Compiled:
            asked.append((candidate.name, candidate.variant.arch, candidate.sms, candidate.shape.dtype))
            return (
                Compiled(status="compile_error", error="no") if fails else Compiled("0123", StaticReport(99, 0, 4096))
            )

    monkeypatch.setattr(session, "compile_each", Some())
    file = tmp_path / "cards.jsonl"
    done = CliRunner().invoke(measure.main, ["cards", "--only", "mma_sync_d64", "--output", str(file)])
    assert done.exit_code == 0, done.output
    rows, archs = read_rows(file), set(LOWERINGS["mma_sync"].archs)
    assert {(row.name, row.arch) for row in rows} == {("mma_sync_d64", arch) for arch in archs}
    assert {row.status for row in rows} == {"compile_error" if fails else "compiled"}
    assert {of[1:] for of in asked} == {(a, CARDS[a].sms, dtype) for a in archs for dtype in ("float16", "bfloat16")}
    assert all(row.nvcc == "13.0.88" and row.reason for row in rows if row.status != "compiled")


def test_a_name_that_no_schedule_has_is_told_in_one_line(tmp_path) -> None:
    done = CliRunner().invoke(measure.main, ["cards", "--only", "best", "--output", str(tmp_path / "cards.jsonl")])
    assert done.exit_code == 2 and done.stderr.startswith("error: no schedule of lowering mma_sync ships with such")
    assert not list(tmp_path.iterdir())
