"""A process of this module is one worker of a study: it searches with a simulated timer, and writes down what it does.

Schedules are drawn without a proof, machine code is a number that several schedules share, and a race takes some
milliseconds. The clock of the wall jumps, by years and at any time.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optuna.storages.journal import _storage as journal
from search_jobs import OF, SHAPE, InTurn, parameters, proposals, schedules

from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure.candidate import called
from tl_attention.lab.search import leases
from tl_attention.lab.search import search as search_module
from tl_attention.lab.search.broods import Bred, Brood, number_of
from tl_attention.lab.search.search import Search
from tl_attention.lab.search.study import Study
from tl_attention.lab.search.timers import Incumbent, Raced
from tl_attention.program.planned import Planned

# So many kinds of machine code there are, fewer than schedules.
CODES = 100_000
# Keys that a stand-in changes: a schedule with any values of these is well-formed.
KEYS = ("kernel.early", "kernel.waits", "kernel.output", "kernel.tile_order", "softmax.row_sum", "softmax.row_max")
# What a person gives each worker.
QUEUED = schedules()[:8]
# The name of all workers.
NAME = "one name for all"


def bred(brood: Brood) -> Bred:
    """Stands in for a process that breeds."""
    rng, point = random.Random(brood.seed), brood.given
    for _ in range(100):
        try:
            schedule = parameters().schedule(point or _drawn(rng))
        except ValueError as error:
            if brood.given:
                return Bred(status="refused", error=str(error).splitlines()[0], judged=1)
            continue
        code = number_of(schedule) % CODES
        found = {"point": parameters().point(schedule), "candidate": called("", SHAPE, Planned(schedule))}
        report = StaticReport(200, 0, 1024, machine_code=f"{code}")
        return Bred(f"{code}", report, **found, guessed_ms=1.0, predicted_ms=2.0 - code / CODES, judged=1)
    return Bred(status="refused", error="nothing is well-formed", judged=100)


def _drawn(rng: random.Random) -> dict[str, Any]:
    point = parameters().point(rng.choice(schedules()))
    return point | {key: rng.choice(parameters().values[key]) for key in KEYS}


class Timer:
    """A Timer writes down which machine code it times, and by whom; the code is how fast it is."""

    def __init__(self, folder: Path, pause_s: float) -> None:
        self._log = os.open(folder / "timed", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._pause_s, self._rng = pause_s, random.Random()

    def __call__(self, candidate: Any, compiled: Any, incumbent: Incumbent | None) -> Raced:
        code = int(compiled.report.machine_code)
        os.write(self._log, f"{code} {os.getpid()}\n".encode())
        time.sleep(self._rng.random() * 2 * self._pause_s)
        if incumbent is None:
            return Raced([], "first", 1.0)
        best = int(incumbent.result.machine_code or 0)
        return Raced([(code - best) / CODES] * 7, "faster" if code > best else "slower", 1.0)


def jumping(real: Callable[[], float]) -> Callable[[], float]:
    """Returns a clock that jumps back and forth by up to ten years."""
    rng = random.Random()
    return lambda: real() + rng.uniform(-3e8, 3e8)


class Jumping(datetime.datetime):
    """This is a datetime whose clock jumps."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.datetime.fromtimestamp(time.time(), tz)


def quick(beat_s: float = 0.2, change: Callable[[Any, str, Any], None] = setattr) -> None:
    """Has workers beat often, and compile nothing."""
    change(leases, "BEAT_S", beat_s)
    change(search_module, "Compilers", InTurn)
    change(search_module, "POLL_S", 0.001)


def opened(url: str, seed: int = 1, **of: str) -> Study:
    return Study(url, "some", OF | of, parameters(), seed, worker=NAME)


def searched(study: Study, folder: Path, seed: int, seconds: float, pause_s: float = 0.05) -> Search:
    """Has a worker search for so many seconds, and leave."""
    # As the command does it, where workers are given one seed.
    given = proposals(study, QUEUED, 1000 * study.number + seed)
    found = Search(study, SHAPE, Timer(folder, pause_s), given, bred)
    found.run(seconds, lambda passed: None)
    study.leases.leave(found.told)
    return found


def main(url: str, folder: Path, number: int) -> None:
    """Searches until it is killed, and writes each result that was told to a file."""
    os.dup2(os.open(folder / f"told{number}", os.O_WRONLY | os.O_CREAT), 1)
    os.dup2(1, 2)
    time.time = jumping(time.time)
    journal.datetime = Jumping  # type: ignore[misc, assignment]
    quick()
    study = opened(url)
    tell = study.tell

    def noted(*of: Any, **result: Any) -> Any:
        if found := tell(*of, **result):
            os.write(1, f"{json.dumps(asdict(found))}\n".encode())
        return found

    study.tell = noted  # type: ignore[method-assign]
    searched(study, folder, 1, 600)
