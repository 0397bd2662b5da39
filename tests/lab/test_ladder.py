"""Ladders: their files, their runs on a stand-in, their tables, the choice, and the rate of plain peers."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_in import Compilers, Gpu, on_a_machine
from tiers import exhaustive
from told import TEXTS

from tl_attention.lab.files.ladder_file import ladder_names, load_ladder
from tl_attention.lab.machine_code.sass import Loop
from tl_attention.lab.measure import bench, mma_peak, peers, published
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.published import space
from tl_attention.lab.measure.records import PRODUCTS, Row, problem_of, read_rows
from tl_attention.lab.measure.session import Session
from tl_attention.lab.measure.trials import SILENT
from tl_attention.lab.show import ladder
from tl_attention.lab.show import ladder as shown
from tl_attention.lab.show.ladder import best_of_tiles
from tl_attention.lab.show.table import Table, lines
from tl_attention.problem.card import HOPPER
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.catalogue import folders, names
from tl_attention.shipped import folder

__all__ = ["on_a_machine"]

SMALL = TEXTS["ladder"]["text"]


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "ladder-small.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("name", ladder_names())
def test_every_ladder_that_ships_is_one_and_uses_all_of_its_schedules(name) -> None:
    found = load_ladder(name)
    assert found.name == name and found.measured[0].against is None
    assert all(step.against for step in found.measured[1:])
    schedules = [step.schedule.schedule for step in found.measured]
    assert len(set(schedules)) == len(schedules), "a step is a renamed copy of another"
    assert any(step.text for step in found.steps), "the text's figures are missing"


def test_five_texts_are_climbed() -> None:
    assert ladder_names() == ["fa4", "rtx3090", "rtx3090_tuned", "rtx5090", "worklog"]
    used = {step.schedule.name for name in ladder_names() for step in load_ladder(name).measured}
    stands = {name for folder in folders() if folder.startswith("ladders/") for name in names(folder)}
    # This one is in the grid of its text: results/grid.yaml.
    assert stands - used == {"ladders/fa4/every_10_causal"}


def test_a_step_goes_on_from_the_one_before_or_from_the_named_one(small) -> None:
    found = load_ladder(small)
    assert found.name == "small" and str(found.shape) == "(1, 2, 256, 128) float16"
    assert [step.against for step in found.steps] == [None, "one", None, "one"]
    assert [step.name for step in found.measured] == ["one", "two", "four"]
    assert found.peers == {"cudnn": 97.5, "flash2": None}


def test_bench_climbs_a_ladder_and_report_shows_its_record(cli, monkeypatch, tmp_path) -> None:
    asked, rows = [], read_rows(folder("results") / "ladder-worklog-h200.jsonl")

    def climb(ladder, card, record, progress, rounds) -> list[Row]:
        asked.append((ladder.name, rounds))
        for row in rows:
            record(row)
        return rows

    monkeypatch.setattr(bench, "climb", climb)
    output = tmp_path / "rows.jsonl"
    results = [cli("bench", "--ladder", "worklog", *rounds, "-o", output) for rounds in ((), ("--rounds", "3"))]
    assert asked == [("worklog", bench.LADDER_ROUNDS), ("worklog", 3)]
    shown = [*results, cli("report", "--ladder", "worklog"), cli("report", "--ladder", "worklog", output)]
    assert all(result.exit_code == 0 for result in shown)
    first, *others = (result.stdout.rpartition(" rows in ")[0].rpartition("\n")[0] for result in shown)
    assert "keys against" in first and others == [first] * 3


# --- runs on a stand-in ----------------------------------------------------------------------------------------


def run(small: Path, monkeypatch, ms=None) -> tuple[dict[str, Row], Gpu]:
    gpu = Gpu(ms=ms)
    monkeypatch.setattr(
        bench, "Session", lambda record, **options: Session(record, worker=gpu, **{**options, "compilers": Compilers()})
    )
    rows = bench.climb(load_ladder(small), HOPPER, lambda row: None, SILENT, rounds=6, seed=1)
    return {row.name: row for row in rows}, gpu


def test_steps_are_sampled_in_turn_with_the_plain_product_and_the_named_peers(small, monkeypatch, on_a_machine) -> None:
    rows, gpu = run(small, monkeypatch)
    assert gpu.named("sample")[:5] == ["mma_sync", "one", "two", "four", "cudnn"]
    assert len(gpu.named("sample")) == 6 * 5 and set(rows) == {"one", "two", "four", "cudnn"}
    assert {row.product for row in rows.values()} == {"mma_sync"}


def test_a_step_is_compared_with_the_one_that_it_goes_on_from(small, monkeypatch, on_a_machine) -> None:
    times = {"mma_sync": 200.0, "one": 4.0, "two": 2.0, "four": 3.0, "cudnn": 1.0}
    rows, _ = run(small, monkeypatch, lambda candidate: times[candidate.name])
    assert rows["one"].against is None and rows["cudnn"].against is None
    assert rows["two"].against.ratios == (0.5,) * 6 and rows["four"].against.ratios == (0.75,) * 6


def test_a_ladder_that_chooses_has_a_row_of_each_configuration_and_a_second_of_the_best(
    small, monkeypatch, on_a_machine
) -> None:
    small.write_text(SMALL + "choose: true\n")
    gpu = Gpu(ms=lambda candidate: 1.0 if "load_2_2_0" in candidate.name else 2.0)

    def session(record, **options):
        return Session(record, worker=gpu, **{**options, "compilers": Compilers(lambda c: c.label)})

    monkeypatch.setattr(bench, "Session", session)
    monkeypatch.setattr(bench, "space", lambda: [c for c in space() if c.tile == (128, 128, 64, 4)])
    rows = bench.climb(load_ladder(small), HOPPER, lambda row: None, SILENT, rounds=2, seed=1)
    of_each, best = ladder.shown_record(rows)
    assert len(of_each) == 30 and len(best) == 1 and "load_2_2_0" in best[0].name
    refused = [row for row in of_each if row.status == "refused"]
    assert refused and all("load_0_" in row.name for row in refused)
    assert ladder.counted(of_each).startswith(f"30 in the space: {len(refused)} were refused before they were timed, ")
    table = ladder.best_of_tiles(best).rows
    assert table[0][0] == "(128, 128, 64, 4)" and table[1][1] == "text, RTX 3090" and table[1][6] == "272"


def test_the_share_is_that_of_the_product_that_the_ladder_names(small, monkeypatch, on_a_machine) -> None:
    rows, _ = run(small, monkeypatch, lambda candidate: 200.0)
    plain = mma_peak.flops(HOPPER.sms, peers.ITERATIONS) / 200 / 1e9
    assert rows["one"].matmul_tflops == pytest.approx(plain)
    assert rows["one"].percent_of_matmul == pytest.approx(100 * rows["one"].tflops / plain)


# --- what a step changed ---------------------------------------------------------------------------------------


def test_the_change_of_a_loop_has_every_kind_that_differs_and_the_rest() -> None:
    before = Loop(100, {"HMMA": 64, "LDSM": 32}, 0)
    assert shown.loop_change(before, replace(before, instructions=90, counts={"HMMA": 64, "LDSM": 16})) == (
        "100 -> 90 instructions: LDSM 32 -> 16, others 4 -> 10"
    )
    assert shown.loop_change(before, before) == "100 -> 100 instructions, as many of each kind, in another order"


# --- the plain product -----------------------------------------------------------------------------------------


@exhaustive
def test_the_loop_of_products_has_nothing_else_in_it() -> None:
    """The loops, compiled for the card, have the products that `flops` counts, and no load, store or spill."""
    from tl_attention.compiler.generation import machine_code
    from tl_attention.compiler.toolchain import use_nvcc
    from tl_attention.lab.machine_code.sass import cuobjdump, read_loops
    from tl_attention.lab.measure.mma_peak import compile_products

    with use_nvcc():
        cubin = machine_code(compile_products("float16", HOPPER.arch, 132).get_kernel_source(), HOPPER.arch)
    loops = read_loops(cubin)
    assert loops
    for loop in loops:
        assert set(loop.counts) == {"HMMA"} and loop.counts["HMMA"] % (mma_peak.ROWS * mma_peak.COLUMNS) == 0
        assert loop.instructions <= loop.counts["HMMA"] + 4
    assert re.search(r"STACK:0 ", cuobjdump(cubin, "--dump-resource-usage"))


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_plain_product_runs_at_a_rate_that_a_card_can_have(name) -> None:
    import torch

    from tl_attention.lab.measure import timing

    call = peers.build_product(name, torch.float16, torch.device("cuda"))
    ms = min(timing.sample(call, 3)[0])
    assert name == "matmul" or ms > 200
    assert 50 < timing.tflops(peers.product_flops(name), ms) < 1500
    assert torch.isfinite(call()).all()


def test_a_candidate_of_a_product_is_no_schedule() -> None:
    candidate = Candidate("mma_sync", load_ladder("rtx5090").shape, arch=HOPPER.arch)
    assert candidate.schedule is None and candidate.label == "mma_sync"


PROBLEM = problem_of(AttentionShape(16, 16, 4096, 4096, 128))
FIRST = "(128, 64, 64, 4)"


def row(tile: str, options: str, takes: tuple[int, int, int] | tuple[()] = (), **fields: Any) -> Row:
    """`takes` are registers, bytes of stack, and KiB of shared memory."""
    name, taken = f"{tile}: async+{options}", {}
    if takes:
        taken = {"registers": takes[0], "stack_bytes": takes[1], "shared_bytes": takes[2] * 1024}
    return Row(name, name, "runtime", PROBLEM, **{"status": "ok", "arch": "sm_90a"} | taken | fields)


def test_what_the_text_has_is_of_its_space_and_of_its_card():
    assert {line.configuration for line in published.BEST} <= set(space())
    assert [line.tflops for line in published.BEST] == sorted((line.tflops for line in published.BEST), reverse=True)
    for line in published.BEST:
        one = line.configuration
        assert line.shared_bytes == (one.block_M + 2 * one.block_N) * one.head_dim * 2
        assert published.CARD.warps_per_sm(one.threads, line.registers, line.shared_bytes) == line.warps_per_sm


def test_what_was_not_timed_or_not_compiled_is_left_empty():
    compiled = row(FIRST, "load_2_2_2_fragments", (255, 272, 64), status="compiled", arch="sm_86")
    refused = row("(128, 192, 64, 4)", "eager+load_2_2_2_fragments", status="refused", arch="sm_86")
    table = [list(line) for line in best_of_tiles([compiled, refused]).rows]
    where = "compiled for RTX 3090"
    assert table[0] == [FIRST, where, "async+load_2_2_2_fragments", "", "", "255", "272", "64", "4"]
    # The text has no such tile.
    assert table[2:] == [["(128, 192, 64, 4)", where, "async+eager+load_2_2_2_fragments", *[""] * 6]]


def test_a_long_name_stands_in_several_lines_of_a_table():
    name = f"{FIRST}: async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax"
    table = [[name, "ok", "1.0"], ["best", "ok", "2.0"]]
    shown, left_out = Table("", ("schedule", "status", "ms"), table, (0, 1, 2)).fitting(60)
    assert (shown, left_out) == ([0, 1, 2], [])
    assert lines(("schedule", "status", "ms"), table)[2:] == [
        "(128, 64, 64, 4): async+eager+swizzled+  ok      1.0",
        "load_0_2_0_fragments+buffer+opt_softmax",
        "best                                     ok      2.0",
    ]
    unbroken = "x" * 90
    assert lines(("schedule",), [[unbroken]])[2:] == [unbroken]
