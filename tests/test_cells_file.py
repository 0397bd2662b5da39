"""Files of cells, and the commands that measure, record and show them. A stand-in times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stand_in import Compilers, Gpu, on_a_machine

from tl_attention.measure import cells
from tl_attention.measure.cells_file import load_cells
from tl_attention.measure.pool import CallFailed

__all__ = ["on_a_machine"]
ROOT = Path(__file__).parents[1]
FILE = """\
tokens: 2048
groups:
  d128:
    heads: 4
    head_dim: 128
    causal: [false, true]
    seq: [1024]
    peers: {fa3: 0.995, cudnn: null}
  window:
    heads: 4
    head_dim: 128
    window: [255, 0]
    causal: [true]
    seq: [2048]
    peers: {unmasked: 0.7}
"""


def test_the_cells_that_ship_are_those_of_the_issue() -> None:
    found = load_cells(ROOT / "results/cells.yaml")
    names = [of.name for of in found]
    assert len(set(names)) == len(names)
    for group, heads, bar in (
        ("d64", (32, 32, 64, 64), 0.97),
        ("d96", (16, 16, 96, 96), 0.92),
        ("d192", (8, 8, 192, 192), 0.92),
        ("d192_128", (8, 8, 192, 128), 0.92),
        ("d256", (8, 8, 256, 256), 0.95),
        ("softcap", (16, 16, 128, 128), 0.95),
    ):
        own = [of for of in found if of.group == group]
        assert {(of.shape.seq_q, of.shape.seq_kv, of.shape.mask.right) for of in own} == {
            (seq, seq, right) for seq in (1024, 4096, 16384) for right in (None, 0)
        }
        assert {(s.heads, s.heads_kv, s.head_dim, s.head_dim_v) for s in (of.shape for of in own)} == {heads}
        assert all(of.shape.batch * of.shape.seq_q == 32768 and of.peers["fa3"] == bar for of in own)
    assert {of.mean for of in found if of.group == "d64"} == {1.0}
    assert {of.group for of in found if of.shape.dtype == "float16"} == {"L_fp16"}
    by_name = {of.name: of for of in found}
    assert by_name["window_both-16k"].peers == {"unmasked": 0.80} and by_name["window_left-16k"].shape.mask.left == 1023
    assert by_name["short-4k"].shape.sizes == (8, 32, 64, 4096)


BAD = {
    "no file of cells": ("block_M: 128", "1: block_M: unknown key, expected one of tokens, groups"),
    "an unknown key": (FILE.replace("heads: 4", "head: 4", 1), "4: groups.d128.head: unknown key, did you mean heads?"),
    "a key too few": (FILE.replace("    heads: 4\n", "", 1), "groups.d128.heads: the key is missing"),
    "a head_dim": (FILE.replace("head_dim: 128", "head_dim: 100", 1), "3: groups.d128: shape: head_dim 100 is not"),
    "a word as head_dim": (
        FILE.replace("head_dim: 128", "head_dim: big", 1),
        "5: groups.d128.head_dim: expected a mult",
    ),
    "a peer": (FILE.replace("fa3", "fa4"), "8: groups.d128.peers.fa4: 'fa4' is no peer, expected fa3, cudnn"),
    "a schedule as peer": (
        FILE.replace("fa3", "ours:bst"),
        "8: groups.d128.peers.ours:bst: no schedule is named 'bst'",
    ),
    "no peer": (FILE.replace("{fa3: 0.995, cudnn: null}", "{}"), "8: groups.d128.peers: "),
    "a bar": (FILE.replace("0.995", "-1"), "8: groups.d128.peers.fa3: "),
    "a length": (FILE.replace("[1024]", "[1000]"), "7: groups.d128.seq: 1000 does not divide the 2048 tokens"),
    "no list": (
        FILE.replace("[1024]", "1024"),
        "7: groups.d128.seq: expected a list, found 1024: expected brackets around it",
    ),
    "heads": (FILE.replace("heads: 4", "heads: 4\n    heads_kv: 3", 1), "groups.d128: shape: 4 heads, expected a mult"),
    "a schedule": (FILE.replace("heads: 4", "schedule: d96\n    heads: 4", 1), "4: groups.d128.schedule: "),
    "a softcap": (FILE.replace("heads: 4", "softcap: -1.0\n    heads: 4", 1), "shape: softcap is -1.0"),
    "a window": (FILE.replace("[255, 0]", "[-2, 0]"), "12: groups.window.window[0]: expected at least -1, found -2"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_of_cells_is_one_line(name, tmp_path, error_of) -> None:
    text, words = BAD[name]
    assert text != FILE
    (tmp_path / "cells.yaml").write_text(text)
    message = error_of("compare", tmp_path / "cells.yaml")
    assert re.match(r".*cells\.yaml:\d+: ", message) and words in message, message


def test_a_cell_is_chosen_by_its_name(cli, error_of, tmp_path) -> None:
    (tmp_path / "cells.yaml").write_text(FILE)
    lines = cli(
        "compare", tmp_path / "cells.yaml", "--list", "--only", "*-causal", "--only", "win*"
    ).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["d128-1k-causal", "window-2k"]
    assert lines[0].endswith("(2, 4, 1024, 128) bfloat16 causal: fa3 0.995, cudnn")
    assert "'d64' is no cell of" in error_of("compare", tmp_path / "cells.yaml", "--only", "d64")


@pytest.fixture
def compared(cli, monkeypatch, tmp_path, on_a_machine) -> Callable[..., tuple[Any, Path]]:
    """Runs `compare` on cells of FILE and a stand-in with a fault, and returns its result and record."""

    def run(*only: str, fault: CallFailed | None = None) -> tuple[Any, Path]:
        gpu = Gpu({} if fault is None else {("sample_batch", "best_causal"): fault}, ms=lambda of: 1.0)
        monkeypatch.setattr(cells, "Worker", lambda: gpu)
        monkeypatch.setattr(cells, "CompilePool", Compilers)
        monkeypatch.setenv("COLUMNS", "200")
        (tmp_path / "cells.yaml").write_text(FILE)
        record, globs = tmp_path / "record.jsonl", [text for glob in only for text in ("--only", glob)]
        return cli("compare", tmp_path / "cells.yaml", "--rounds", "6", "--output", record, *globs), record

    return run


@pytest.mark.parametrize("fault", [None, CallFailed("crashed", "gone")])
def test_the_command_shows_records_and_reports(fault, cli, compared) -> None:
    result, record = compared("d128-*", fault=fault)
    assert result.exit_code == (0 if fault is None else 1), result.output
    assert "d128-1k: 1.000 ms, fa3 1.000 (1.000-1.000), cudnn 1.000 (1.000-1.000): met" in result.stderr
    assert "2 cells in" in result.stdout and ("d128: geometric mean 1.000 of fa3 (" in result.stdout) == (fault is None)
    if fault:
        assert "ours: crashed: timing: gone (d128-1k-causal)" in result.stdout
        assert "not measured: 1 of 2: d128-1k-causal" in result.stdout
    shown = cli("report", record)
    assert shown.exit_code == 0 and shown.stdout == result.stdout.partition("2 cells in")[0]
    assert cli("report", record, "--markdown").stdout.count("| d128-") == 2


def test_a_line_that_is_no_cell_is_named(cli, compared) -> None:
    _, record = compared("d128-1k")
    (line,) = record.read_text().splitlines()
    broken = json.loads(line) | {"peers": {"fa3": "fast"}}
    record.write_text(f"{line}\n{json.dumps(broken)}\n")
    result = cli("report", record)
    assert result.exit_code == 0 and f"skipped: {record}:2: peers.fa3: expected" in result.stderr
