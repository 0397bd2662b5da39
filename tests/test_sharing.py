"""`bench --share` writes a fixed list of fields, and nothing that says whose machine it was."""

from __future__ import annotations

import getpass
import json
import os
import socket
from dataclasses import fields, replace
from pathlib import Path

import pytest
from stand_in import Compilers, Gpu, on_a_machine

from tl_attention.compiler.sass import Loop
from tl_attention.errors import InputError
from tl_attention.files.named import resolve
from tl_attention.measure import bench, machine, session
from tl_attention.measure.cell_records import CellRow
from tl_attention.measure.compilation import Compiled
from tl_attention.measure.pool import CallFailed
from tl_attention.measure.records import Row, parse_line, read_rows
from tl_attention.measure.results_file import ResultsFile, SharedFile, shared

__all__ = ["on_a_machine"]

# Written down here once more, on purpose: whoever lets more out says so in two places.
FIELDS = {
    *("name", "label", "sizes", "problem", "status", "arch", "fingerprint"),
    *("registers", "stack_bytes", "shared_bytes"),
    *("error_rms", "error_rms_budget", "error_max_abs", "error_max_abs_budget", "verified_shapes"),
    *("median_ms", "p10_ms", "p90_ms", "n", "rounds_ms", "tflops"),
    *("product", "matmul_tflops", "percent_of_matmul", "sm_clock_mhz", "method"),
    *("device", "driver", "power_limit_w", "nvcc", "ptxas", "versions", "seed", "run"),
}
PROBLEM = {
    *("batch", "heads", "heads_kv", "seq_q", "seq_kv", "head_dim", "head_dim_v", "dtype", "causal", "window"),
    *("softcap", "sinks", "lse"),
}
VERSIONS = {"tl-attention", "torch", "tilelang", "python", "cuda", "cudnn"}
PRIVATE = ("alice", "vault", "secret", "GPU-5e1f", "1324021", "c0f9511a2b3c", "/", "@")


def private_row(folder: str = "/home/alice/vault") -> Row:
    """Makes a row with private words in each field that another program, or a user, can write."""
    return Row(
        name=f"{folder}/secret.yaml",
        label=resolve("best").schedule.label,
        sizes="runtime",
        problem={"batch": 1, "heads": 2, "seq_q": 9, "seq_kv": 9, "head_dim": 64, "dtype": "float16", "causal": False},
        status="compile_error",
        reason=f"nvcc: {folder}/x.cu(3): error on alice@vault, serial 1324021",
        fingerprint="0123456789ab",
        same_code_as=f"{folder}/other.yaml",
        loops=(Loop(9, {"HGMMA": 1}, 0),),
        median_ms=1.0,
        p10_ms=1.0,
        p90_ms=1.0,
        known_from="alice's run",
        method="CUDA events",
        device="NVIDIA H200 (UUID: GPU-5e1f) @ vault",
        driver="580.1-alice",
        nvcc="13.0.88",
        ptxas="/opt/alice/ptxas",
        commit="c0f9511a2b3c, changed",
        versions={
            "tl-attention": "0.1.0",
            "torch": "2.13.0+alice.vault",
            "tilelang": f"file://{folder}",
            "python": "3.12.3",
            "cuda": "13.0",
            "SECRET_TOKEN": "secret",
        },
        run="2026-11-23T01:00:00Z",
    )


def test_nothing_private_is_left() -> None:
    text = shared(private_row()).to_json()
    assert not [word for word in PRIVATE if word in text.replace(resolve("best").schedule.label, "")], text
    kept = json.loads(text)
    assert kept["name"] == kept["label"] == resolve("best").schedule.label
    assert (kept["device"], kept["driver"], kept["nvcc"], kept["ptxas"]) == ("unknown", "580.1", "13.0.88", "unknown")
    assert kept["versions"] == {
        "tl-attention": "0.1.0",
        "torch": "2.13.0",
        "tilelang": "unknown",
        "python": "3.12.3",
        "cuda": "13.0",
    }


@pytest.mark.parametrize(
    "version,kept",
    [
        ("2.13.0+cu130", "2.13.0+cu130"),
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("2.14.0a0+gitalice", "2.14.0a0"),
        ("0.1.15.post2", "0.1.15.post2"),
        ("580.95.05", "580.95.05"),
        ("92000", "92000"),
        ("alice", "unknown"),
    ],
)
def test_a_version_is_its_numbers(version, kept) -> None:
    assert shared(replace(private_row(), driver=version)).driver == kept


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 3090", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA H100 80GB HBM3"]
)
def test_a_gpus_name_stays(name) -> None:
    assert shared(replace(private_row(), device=name)).device == name


def test_the_name_of_a_schedule_that_ships_stays_and_a_users_own_of_that_name_does_not() -> None:
    best = resolve("best").schedule.label
    assert shared(replace(private_row(), name="best")).name == "best"
    assert shared(replace(private_row(), name="best", label=resolve("seed").schedule.label)).name != "best"
    assert shared(replace(private_row(), name="mine")).name == best


def test_every_field_of_a_row_is_shared_or_known_to_be_left_out() -> None:
    left_out = {"reason", "machine_code", "same_code_as", "loops", "against", "known_from", "commit"}
    assert {field.name for field in fields(Row)} == FIELDS | left_out


@pytest.fixture
def bench_here(monkeypatch, on_a_machine, cli, tmp_path):
    """Runs `bench` by stand-ins, on a machine whose names stand in its machine, its folders and its errors."""
    folder = tmp_path / "alice" / "vault"
    folder.mkdir(parents=True)
    mine = folder / "secret.yaml"
    mine.write_text("base: best\nsummary: of alice\nhead_dims: [128]\n")
    monkeypatch.setenv("USER", "alice")
    monkeypatch.setenv("HOSTNAME", "vault")
    monkeypatch.setattr(machine, "gpu", lambda: machine.Gpu("NVIDIA H200", "580.1", "13.0", 700.0))
    broken = Compiled(status="compile_error", error=f"{folder}/kernel.cu: error")
    gpu = Gpu({("verify", "seed"): CallFailed("crashed", f"core dumped to {folder} on {socket.gethostname()}")})
    monkeypatch.setattr(session, "Worker", lambda: gpu)
    monkeypatch.setattr(bench, "CompilePool", Compilers)
    monkeypatch.setitem(__import__("stand_in").BROKEN, "prefetch", broken)

    def run(share: Path):
        arguments = ("--dtype", "fp16", "--shape", "1,2,256,128", "--output", folder / "rows.jsonl", "--share", share)
        return cli("bench", "best", "seed", "prefetch", mine, *arguments)

    return run


def test_what_bench_shares_has_these_fields_and_nothing_of_the_machine(bench_here, tmp_path) -> None:
    file = tmp_path / "to-share.jsonl"
    result = bench_here(file)
    own, text = read_rows(tmp_path / "alice/vault/rows.jsonl"), file.read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == len(own) == 5 and f"to share, 5 rows in {file}" in result.stdout.replace("\n", " ")
    assert any("alice" in row.reason for row in own), "the record itself has what is left out"
    for row in rows:
        assert {*row} <= FIELDS and {*row["problem"]} <= PROBLEM and {*row["versions"]} <= VERSIONS
    names = {socket.gethostname(), getpass.getuser(), str(tmp_path), str(Path.home()), "alice", "vault", "secret"}
    for value in (text for row in rows for text in _strings(row)):
        assert not [name for name in names if len(name) > 3 and name in value], value
    assert not [name for name, value in os.environ.items() if len(value) > 11 and value in text]
    assert {row["status"] for row in rows} == {"ok", "crashed", "compile_error"}
    timed = next(row for row in rows if row["name"] == "best")
    assert (
        timed["median_ms"] and timed["n"] and timed["method"] and timed["error_max_abs"] and timed["arch"] == "sm_90a"
    )


def _strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in _strings(part)]
    return [value] if isinstance(value, str) else []


def test_more_is_added_to_what_was_shared_and_to_nothing_else(tmp_path, bench_here) -> None:
    file = tmp_path / "to-share.jsonl"
    bench_here(file)
    bench_here(file)
    assert len(read_rows(file)) == 10
    own = tmp_path / "alice/vault/rows.jsonl"
    before = own.read_bytes()
    with pytest.raises(
        InputError, match="has more in it than is shared, expected a new file, or one that --share made"
    ):
        SharedFile(own)
    assert own.read_bytes() == before


def test_a_shared_row_is_a_row_and_sharing_it_again_changes_nothing(tmp_path) -> None:
    row = shared(private_row())
    assert shared(row) == row
    assert parse_line(Row, row.to_json().encode(), "a line") == row
    with ResultsFile(tmp_path / "rows.jsonl") as results:
        results.append(row)
    SharedFile(tmp_path / "rows.jsonl").close()


def test_cells_have_no_shared_form() -> None:
    """`compare` records what `shared` does not know, so a field of its own must stop a row of it from being shared."""
    assert not {field.name for field in fields(CellRow)} <= FIELDS
