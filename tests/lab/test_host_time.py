"""Tests run `tools/measure.py host` without a GPU: what it counts, and in which order."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from gradients import flash_on_cpu
from measurements import host
from measurements.host import Candidate
from on_cpu import on_cpu

from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.schedule.files.backward import backward_rules, case_of

__all__ = ["flash_on_cpu", "on_cpu"]


@pytest.fixture
def events(monkeypatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: found.append("wait"))
    return found


def candidate(name: str, events: list[str]) -> Candidate:
    @contextmanager
    def forced() -> Iterator[None]:
        events.append(f"force {name}")
        yield

    return Candidate(name, lambda: events.append(name), forced)


def test_rounds_alternate_and_the_gpu_is_waited_for_outside_the_clock(events) -> None:
    found = host.host_times([candidate(name, events) for name in "ab"], 300, 2)
    assert {name: list(map(len, of_rounds)) for name, of_rounds in found.items()} == {"a": [150, 150], "b": [150, 150]}
    order = [event for event in events if event.startswith("force")]
    assert order == [f"force {name}" for name in "ababba"]
    run = 0
    for event in events:
        run = run + 1 if event in "ab" else 0
        assert run <= host.DRAINED


def test_a_row_has_the_median_of_all_calls() -> None:
    row = host.row_of("a", [[1_000, 2_000, 3_000], [9_000, 9_000, 9_000]])
    assert row["median_us"] == 6.0 and row["n"] == 6 and row["round_medians_us"] == [2.0, 9.0]
    assert json.loads(json.dumps(row)) == row


def test_forward_and_backward_are_timed_in_loops(events, monkeypatch) -> None:
    monkeypatch.setattr(host, "LOOPS", 2)
    rows = host.backward_rows([candidate(name, events) for name in "ab"])
    assert [row["candidate"] for row in rows] == ["a", "b"] and all(row["n"] == 200 for row in rows)
    assert all(len(row["round_medians_us"]) == 2 and "forward and backward" in row["method"] for row in rows)
    # One loop of 200 calls of each is not counted, then two of 100; the GPU is waited for around each loop.
    assert events.count("a") == events.count("b") == 400 and events.count("wait") == 2 * 6


def test_the_rules_keep_one_of_both_short_problems_from_cudnn(on_cpu, flash_on_cpu) -> None:
    rules = backward_rules()
    operators = [rules.rules[rules.find(case_of(replace(host.SHORT, mask=mask)))].operator for mask in (FULL, CAUSAL)]
    assert operators == ["pair", "cudnn"]
    names = {one.name: one for one in host.backward_candidates("cpu")}
    assert len(names) == 6
    for name in ("attention, forward and backward", "sdpa flash, forward and backward, causal"):
        with names[name].context():
            assert [x.shape for x in names[name].call()] == [(1, 8, 704, 64)] * 3


def test_the_first_process_is_not_counted(monkeypatch) -> None:
    times = iter(["900 1000", "10 60", "some words\n20 80", "30 70"])
    programs = []

    def run(command: list[str], **options: object) -> SimpleNamespace:
        programs.append(command[-1])
        return SimpleNamespace(returncode=0, stdout=next(times), stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(host, "PROCESSES", 3)
    (row,) = host.first_rows()
    assert (row["median_ms"], row["of_it_import_ms"], row["all_ms"]) == (70, 20, [60, 80, 70])
    compile(programs[0], "first", "exec")
    assert "(1, 32, 128, 128), dtype=torch.bfloat16" in programs[0]
