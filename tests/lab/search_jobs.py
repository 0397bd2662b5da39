"""Tests of the search share a study and stand-ins; run as a script this searches by them, and prints what it told."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tl_attention.lab.cli import main
from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure import session
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.search import broods
from tl_attention.lab.search.broods import Bred, Brood, number_of
from tl_attention.lab.search.parameters import Parameters, Point
from tl_attention.lab.search.proposals import Proposals
from tl_attention.lab.search.search import Search
from tl_attention.lab.search.space import read
from tl_attention.lab.search.study import DRAWN, Result, Study
from tl_attention.lab.search.timers import ByPrediction
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files.catalogue import names
from tl_attention.schedule.files.named import load
from tl_attention.schedule.schedule import Schedule

SHAPE = AttentionShape(1, 2, 256, 256, 128)
OF = {"problem": f"{SHAPE}", "space": "as it ships", "card": "a stand-in", "kernels": "c0f9511a2b3c"}


@cache
def parameters() -> Parameters:
    return Parameters(read())


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/search.db"


def opened(folder: Path, name: str = "some", **of: str) -> Study:
    return Study(url_of(folder), name, OF | of, parameters(), seed=1)


@cache
def schedules() -> tuple[Schedule, ...]:
    """Returns shipped schedules that are points of the space and fit the problem."""
    shipped = map(load, ("best", "seed", *names()))
    return tuple(dict.fromkeys(one for one in shipped if one.lowering == "warp_specialized" and one.block_M <= 128))


def points() -> list[Point]:
    return [*map(parameters().point, schedules())]


def many(count: int) -> list[Point]:
    """Returns so many points, of which several have one schedule: they differ in what it does not have."""
    whole = [point for point in points() if point["chunks.rescale"] == 1]
    widths = parameters().values["width.rescale.0"]
    return [point | {"width.rescale.0": width} for width in widths for point in whole][:count]


def proposals(study: Study, queued: Sequence[Schedule] = (), seed: int = 1) -> Proposals:
    return Proposals(study, SHAPE, queued, random.Random(seed))


def told(study: Study, point: Point, source: str = DRAWN, **result: Any) -> Result:
    """Tells of a point that it was timed, or what is given instead."""
    timed = {"at": float(len(study.results)), "ms": 1.0, "value": 0.0, "verdict": "slower", "ratios": [-0.1]}
    if "schedule" not in result:
        result["schedule"] = number_of(parameters().schedule(point))
    found = study.tell(point, source, **(result if "reason" in result else timed | result))
    assert found
    return found


def compiled(candidate: Candidate) -> Compiled:
    """Stands in for compilers: the code is the schedule, and so is the time."""
    code = hashlib.sha256(candidate.ours.schedule.model_dump_json().encode()).hexdigest()
    return Compiled(
        code[:12], StaticReport(200, 0, 1024, machine_code=code), predicted_ms=1 + int(code[:6], 16) / 2**25
    )


def bred(brood: Brood) -> Bred:
    """Stands in for a process that breeds: it proposes and judges, and a stand-in compiles."""
    return broods.bred(brood, compiled)


class InTurn:
    """These processes are this one, which does one thing after another."""

    def __init__(self, work: Callable[[Any], Compiled], processes: int) -> None:
        self._work, self.processes, self._submitted = work, processes, list[Any]()

    def __class_getitem__(cls, kind: object) -> type[InTurn]:
        return cls

    def __enter__(self) -> InTurn:
        return self

    def __exit__(self, *exception: object) -> None: ...

    @property
    def waiting(self) -> int:
        return len(self._submitted)

    def submit(self, one: Any) -> None:
        self._submitted.append(one)

    def take(self, timeout_s: float) -> Iterator[tuple[Any, Compiled]]:
        if self._submitted:
            one = self._submitted.pop(0)
            yield one, self._work(one)


def search(folder: Path, seed: int) -> None:
    """Searches for a minute, and prints each result that was told."""
    study = opened(folder)
    tell = study.tell

    def printed(*of: Any, **result: Any) -> Result | None:
        if found := tell(*of, **result):
            os.write(1, f"{json.dumps(asdict(found))}\n".encode())
        return found

    study.tell = printed  # type: ignore[method-assign]
    Search(study, SHAPE, ByPrediction(), proposals(study, schedules(), seed), bred).run(60, lambda passed: None)


def in_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float | None = None) -> None:
    """Has the command search in a folder without a GPU, for so many seconds if they are given."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(session, "another_gpu", lambda arch: "no GPU")
    # To draw them would compile the winner.
    monkeypatch.setattr(import_module("tl_attention.lab.cli.search"), "_timelines", lambda *of: None)
    if seconds is not None:
        run = Search.run
        monkeypatch.setattr(Search, "run", lambda search, _, told: run(search, seconds, told))


def command() -> None:
    """Runs the command line with stand-ins and no GPU, and prints a line when the first result is told."""
    # A shell has its background processes ignore it, and these have it from them.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tell = Study.tell

    def first(*of: Any, **result: Any) -> Result | None:
        found = tell(*of, **result)
        Study.tell = tell  # type: ignore[method-assign]
        print("told", flush=True)
        return found

    Study.tell = first  # type: ignore[method-assign, assignment]
    Search.__init__.__defaults__ = (bred,)
    session.another_gpu = lambda arch: "no GPU"  # type: ignore[assignment, return-value]
    # To draw them would compile the winner.
    import_module("tl_attention.lab.cli.search")._timelines = lambda *of: None  # type: ignore[attr-defined]
    main()


if __name__ == "__main__":
    search(Path(sys.argv[1]), int(sys.argv[2]))
