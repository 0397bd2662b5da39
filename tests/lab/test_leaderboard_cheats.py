"""Submissions that compute outside the time that counts lose their verdict, and an honest one keeps it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from cheats import AFTERWARDS, GPU_SOURCES, OTHER_CLOCKS, SOURCES, source
from harness import FAR_S, LINE, PREAMBLE, calling
from tiers import exhaustive, sampled

from tl_attention.lab.leaderboard import evaluate as harness
from tl_attention.lab.leaderboard.contract import RANKED_LINES, TestLine
from tl_attention.lab.leaderboard.inputs import PARTS, ROWS, Change, Inputs
from tl_attention.lab.leaderboard.message import Message
from tl_attention.lab.leaderboard.outputs import Outputs
from tl_attention.lab.leaderboard.reference import generate_input
from tl_attention.lab.leaderboard.results import LineResult, Outcome
from tl_attention.lab.leaderboard.timed import Timer

# At this size a kernel takes longer on any GPU than everything around it.
LARGE = RANKED_LINES[1]
NAMED = [
    "it keeps its output while version counters stand",
    "it computes in detach() of a subclass",
    "a thread computes later",
    "it rewrites the output of the call before",
]


# One of n outputs is held, drawn by chance. If it is the last one, no call is left that would rewrite it.
BY_CHANCE, TRIES = {"it rewrites the output of the call before"}, 4


@pytest.fixture
def judged(monkeypatch) -> Callable[..., LineResult]:
    """Gives a function that evaluates a submission on one line, without importing it once more before that."""
    run = harness.run

    def run_tests(folder: Path, plan: Mapping[str, Any], timeout_s: float) -> tuple[Outcome, Message]:
        return run(folder, plan, timeout_s) if plan["line"] else (Outcome("pass", "", 0.0), Message(error=""))

    monkeypatch.setattr(harness, "run", run_tests)

    def evaluated(text: bytes, line: TestLine = LINE, device: str = "cpu") -> LineResult:
        [row] = harness.evaluate("cheat.py", text, [line], device=device, test_s=FAR_S).rows
        return row

    return evaluated


def check_void(row: LineResult, reasons: Sequence[str]) -> None:
    assert row.outcome.status in ("wrong", "error") and any(said in row.outcome.reason for said in reasons), row
    assert not (row.accepted or row.tight or row.timing)


@pytest.mark.parametrize("name", sampled(SOURCES, NAMED))
def test_a_cheat_has_no_verdict_and_no_times(judged, name: str) -> None:
    program, reasons = SOURCES[name]
    for _ in range(TRIES if name in BY_CHANCE else 1):
        row = judged(source(program))
        if row.outcome.status != "pass":
            break
    check_void(row, reasons)


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", [*SOURCES, *GPU_SOURCES])
def test_a_cheat_has_no_verdict_and_no_times_on_a_gpu(judged, name: str) -> None:
    program, reasons = (SOURCES | GPU_SOURCES)[name]
    check_void(judged(source(program), LARGE, "cuda"), reasons)


def check_true_times(row: LineResult) -> None:
    assert row.outcome.status == "pass" and row.timing and row.timing.best_ms >= AFTERWARDS * 1e3


@exhaustive
def test_times_are_true_where_the_submission_replaces_clocks(judged) -> None:
    check_true_times(judged(source(OTHER_CLOCKS)))


@pytest.mark.gpu
@pytest.mark.alone
def test_times_are_true_where_the_submission_replaces_clocks_on_a_gpu(judged) -> None:
    check_true_times(judged(source(OTHER_CLOCKS), LARGE, "cuda"))


# It computes with what it is given, and notes of all calls how many addresses with versions, q, k and v there were.
SEES = """\
global seen
seen = globals().get("seen") or [set() for _ in range(4)]
seen[0].add(tuple((tensor.data_ptr(), tensor._version) for tensor in data))
for number, tensor in enumerate(data):
    seen[1 + number].add(tensor[:, :, :16].cpu().numpy().tobytes())
note([len(found) for found in seen])
"""


def check_unseen_changes(judged: Callable[..., LineResult], folder: Path, line: TestLine, device: str) -> None:
    row = judged(f"folder = {str(folder)!r}\n{PREAMBLE}{calling(SEES)}".encode(), line, device)
    assert row.outcome.status == "pass" and row.tight
    versions, *contents = json.loads((folder / "noted").read_text())
    assert versions == 1 and min(contents) >= 3


def test_inputs_change_where_no_address_and_no_version_counter_shows_it(judged, tmp_path: Path) -> None:
    check_unseen_changes(judged, tmp_path, LINE, "cpu")


@pytest.mark.gpu
@pytest.mark.alone
def test_inputs_change_where_no_address_and_no_version_counter_shows_it_on_a_gpu(judged, tmp_path: Path) -> None:
    check_unseen_changes(judged, tmp_path, TestLine(2, 2, 16, 64, 1118), "cuda")


def test_inputs_change_and_rows_are_read_while_nobody_waits_for_the_device(monkeypatch) -> None:
    """So nothing can be computed ahead, and a call that waits for nothing that was queued before it has old queries."""
    done: list[str] = []

    def noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: (done.append(name), function(*arguments))[1]

    inputs = Inputs(*(generate_input(**asdict(LINE), device="cpu") for _ in range(2)))
    timer, outputs = Timer("cpu"), Outputs(inputs)
    for name in ("record", "copy", "synchronize"):
        monkeypatch.setattr(timer, name, noting(name, getattr(timer, name)))
    for name in ("change_keys", "change_queries"):
        monkeypatch.setattr(inputs, name, noting(name, getattr(inputs, name)))
    monkeypatch.setattr(timer, "_clearing", lambda like: noting("clear", lambda: None))
    monkeypatch.setattr(outputs, "check", noting("check", outputs.check))
    timer.time(noting("call", lambda data: data[0].clone()), inputs, outputs)
    before = ["synchronize", "change_keys", "clear", "change_queries"]
    call = [*before, "record", "call", "record", "copy", "record", "synchronize", "check"]
    assert done == call * (len(done) // len(call)) and len(done) >= 3 * len(call)


@pytest.mark.parametrize(
    "read_ms, idle_ms, said",
    [
        ([0.01] * 30, [0.2] * 30, ""),
        ([3.0] * 3 + [0.05] * 27, [9.0] * 3 + [0.2] * 27, ""),
        (
            [3.0] * 4 + [0.01] * 26,
            [0.2] * 30,
            "4 of 30 timed calls went on after their end: their outputs were read up to 3 ",
        ),
        (
            [0.01] * 30,
            [9.0] * 4 + [0.2] * 26,
            "4 of 30 timed calls went on after their end: the device was idle up to 9 ",
        ),
        ([0.06, 0.01, 0.01], [1.1, 0.2, 0.2], ""),
        (
            [0.06, 0.06, 0.01],
            [0.2] * 3,
            "2 of 3 timed calls went on after their end: their outputs were read up to 0.06 ",
        ),
    ],
)
def test_one_call_of_ten_may_be_late_on_a_gpu(read_ms: list[float], idle_ms: list[float], said: str) -> None:
    n = len(read_ms)
    wall_ms = tuple(1.0 + idle for idle in idle_ms)
    message = Message(error="", samples_ms=(1.0,) * n, read_ms=tuple(read_ms), wall_ms=wall_ms)
    found = message.late("cuda")
    assert found.startswith(said) and bool(found) == bool(said)


@pytest.mark.parametrize("seq_len", [1, 2, 3, 5, 16, 63, 257])
def test_changes_are_of_a_part_of_the_keys_and_of_every_second_row_that_is_read(seq_len: int) -> None:
    first, second = (tuple(torch.full((1, 2, seq_len, 8), value) for _ in range(3)) for value in (0.0, 1.0))
    inputs = Inputs(first, second)
    limits: list[int] = []
    inputs.draw(lambda n: limits.append(n) or 0)
    last = Change(*(n - 1 for n in limits))
    inputs.change_keys(last)
    inputs.change_queries(last)
    read = torch.arange(seq_len)[inputs.rows_from(last.row)[2]].tolist()
    assert len(read) == min(ROWS, seq_len) and read[-1] == seq_len - 1
    q, k, v = (tensor[0, 0, :, 0].nonzero().flatten().tolist() for tensor in inputs.data)
    assert q == read[::2] and k == v == [*range(seq_len - max(1, seq_len // PARTS), seq_len)]
    # From the first offset to the last, every row is read.
    every = {row + n * inputs.step for row in range(limits[2]) for n in range(inputs.rows)}
    assert every == {*range(seq_len)}
    inputs.change_all()
    assert all(torch.equal(tensor, other) for tensor, other in zip(inputs.data, second))
