"""Calls are timed in batches that are enqueued ahead of the GPU, or in CUDA graphs."""

from contextlib import nullcontext

import pytest

from tl_attention.lab.measure import timing


def test_a_batch_that_began_before_it_was_enqueued_is_taken_again(monkeypatch) -> None:
    """A stand-in for CUDA passes the first event when the GPU has slept for as long as the calls take on the host."""
    import torch

    slept: list[int] = []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            pass

        def query(self) -> bool:
            return slept[-1] < 4 * timing.FIRST_HOLD

        def elapsed_time(self, end) -> float:
            return 7.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "sm_clock_mhz", lambda: 1500)
    batch = timing.TimedBatch(lambda: None)
    assert slept == [timing.FIRST_HOLD, 2 * timing.FIRST_HOLD, 4 * timing.FIRST_HOLD] and batch.calls == 4
    assert batch.sample() == (7.5 / 4, 1500) and len(slept) == 4
    monkeypatch.setattr(Event, "query", lambda self: True)
    with pytest.raises(RuntimeError, match="a call waits for it"):
        batch.sample()


def test_a_graph_has_calls_of_some_milliseconds_and_is_replayed(monkeypatch) -> None:
    import torch

    done: list[str] = []

    class Graph:
        def replay(self) -> None:
            done.append("replay")

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self) -> None:
            done.append("record")

        def elapsed_time(self, end) -> float:
            return 0.3

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "sm_clock_mhz", lambda: 1500)
    batch = timing.GraphBatch(lambda: done.append("call"))
    timed = ["replay", "record", "replay", "record"]
    # A call takes 0.1 ms, so 40 are captured.
    assert done == [*3 * ["call"], *timed, *40 * ["call"]] and batch.calls == 40
    assert batch.sample() == (0.3 / 40, 1500) and done[43 + 4 :] == timed
