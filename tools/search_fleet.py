"""Simulates a search of many workers from measured times, and says what limits it.

    python tools/search_fleet.py --storage postgresql://me@host/empty --output results/search-fleet.yaml

It measures what a candidate costs of a core and of the database, in a study of its own, and has simpy run workers of
one GPU and 14 compilers each for ten minutes. What a race takes is measured on a GPU elsewhere, and given by --race;
without it that follows from the rounds of a race, a sample's time and CHECK_S.
"""

from __future__ import annotations

import datetime
import os
import random
import resource
import statistics
import time
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import simpy
import yaml
from sqlalchemy import event

from tl_attention.lab.search.broods import bred
from tl_attention.lab.search.leases import BEAT_S
from tl_attention.lab.search.parameters import Parameters
from tl_attention.lab.search.proposals import TURNS, Proposals
from tl_attention.lab.search.race import LOOKS
from tl_attention.lab.search.space import read
from tl_attention.lab.search.study import DRAWN, SAMPLED, Study
from tl_attention.lab.search.timers import SAMPLE_MS
from tl_attention.problem.shape import AttentionShape

SHAPE = AttentionShape.parse("4,64,8192,128", dtype="bfloat16")
WORKERS, COMPILERS, SECONDS = (1, 8, 64, 512), 14, 600.0
# Broods that are bred for the measurement, and trials that the study has.
BROODS, TRIALS = 6, 1000
# To check a candidate on the last rows, to load it, and to make room.
CHECK_S = 1.0


@dataclass
class Costs:
    """Costs are seconds: of a core for a brood, a proposal and a trial that another worker told; of the database."""

    brood: float
    raced: float  # broods that come to a race, as a part of all
    race: float
    ask: float  # the sampler's
    learn: float  # of a trial of another worker
    claim: float
    tell: float
    beat: float
    locked: float  # a told trial has the study for itself so long
    calls: float  # of the database for a candidate, without beats


class Counted:
    """A Counted study counts the statements, begins and ends of transactions, and for how long it was locked."""

    def __init__(self, study: Study) -> None:
        self.calls, self.locked = 0, list[float]()
        self._since: float | None = None
        for what in ("before_cursor_execute", "begin", "commit", "rollback"):
            event.listen(study._storage.engine, what, partial(self._count, what), named=True)

    def _count(self, what: str, statement: str = "", **more: Any) -> None:
        self.calls += 1
        if statement.startswith("UPDATE search_studies"):
            self._since = time.monotonic()
        elif what == "begin" and self._since is not None:
            # The transaction before has ended.
            self.locked.append(time.monotonic() - self._since)
            self._since = None


def core_s() -> float:
    """Returns the seconds of cores that this process and its ended ones have had."""
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def opened(url: str, name: str) -> Study:
    return Study(url, name, {"of": "search_fleet"}, Parameters(read()), 1, "search_fleet")


def write(study: Study, count: int) -> None:
    """Tells of so many drawn points."""
    rng = random.Random(1)
    for number in range(count):
        told: dict[str, Any] = {
            "verdict": "slower",
            "value": -rng.random(),
            "ms": 1.0,
            "ratios": [-0.1] * 7,
            "guessed_ms": 1.0,
        }
        study.tell(study.parameters.drawn(rng), DRAWN, **told, machine_code=f"{number}", schedule=number)


def timed(work: Callable[[], Any], times: int = 20) -> float:
    """Returns the median of the seconds that something takes."""
    found = []
    for _ in range(times):
        begun = time.monotonic()
        work()
        found.append(time.monotonic() - begun)
    return statistics.median(found)


def measured(url: str, race: float | None) -> Costs:
    """Measures all costs, in a new study of a database."""
    name = f"fleet-{os.getpid()}"
    study = opened(url, name)
    write(study, TRIALS)
    begun = time.process_time()
    opened(url, name)
    learn = (time.process_time() - begun) / TRIALS
    counted, rng, keys = Counted(study), random.Random(7), iter(range(10**6))

    def told() -> None:
        key = study.claim(f"code {next(keys)}")
        study.tell(study.parameters.drawn(rng), DRAWN, [key], reason="spills")

    claim, both = timed(lambda: study.claim(f"code {next(keys)}")), timed(told)
    counted.calls = 0
    told()
    calls = counted.calls
    proposals = Proposals(study, SHAPE, [], random.Random())
    asks = timed(study.ask, 5)
    before, found = core_s(), []
    for _ in range(BROODS):
        brood = proposals._brood(DRAWN)
        found.append(bred(brood))
    return Costs(
        brood=(core_s() - before) / BROODS,
        raced=sum(brood.report is not None for brood in found) / BROODS,
        race=race or CHECK_S + 2 * LOOKS[0] * SAMPLE_MS / 1000,
        ask=asks,
        learn=learn,
        claim=claim,
        tell=both - claim,
        beat=timed(lambda: study.leases.beat({})),
        locked=statistics.median(counted.locked),
        calls=calls,
    )


def simulated(costs: Costs, workers: int) -> dict[str, Any]:
    """Simulates so many workers, and returns what they race in an hour and how busy each part is."""
    now, rng = simpy.Environment(), random.Random(workers)
    study = simpy.Resource(now)
    busy, told = dict.fromkeys(("GPU", "compilers", "worker's process", "study's lock"), 0.0), [0]

    def has(part: str, seconds: float) -> simpy.Event:
        busy[part] += seconds
        return now.timeout(seconds)

    def breeds(main: simpy.Resource, ready: simpy.Store) -> Generator[simpy.Event, Any, None]:
        yield now.timeout(rng.uniform(0, costs.brood))
        while True:
            if rng.random() < TURNS.count(SAMPLED) / len(TURNS):
                with main.request() as mine:
                    yield mine
                    yield has("worker's process", costs.ask)
            yield has("compilers", costs.brood * rng.uniform(0.5, 1.5))
            yield ready.put(rng.random() < costs.raced)

    def searches(main: simpy.Resource, ready: simpy.Store) -> Generator[simpy.Event, Any, None]:
        while True:
            races = yield ready.get()
            if races:
                yield now.process(calls(main, costs.claim, 0.0))
                yield has("GPU", costs.race * rng.uniform(0.7, 1.3))
            yield now.process(calls(main, max(costs.tell - costs.locked, 0.0), costs.locked))
            told[0] += races

    def calls(main: simpy.Resource, seconds: float, locked: float) -> Generator[simpy.Event, Any, None]:
        with main.request() as mine:
            yield mine
            yield has("worker's process", seconds)
            if locked:
                with study.request() as its:
                    yield its
                    yield has("study's lock", locked)

    def beats(main: simpy.Resource) -> Generator[simpy.Event, Any, None]:
        known = 0
        while True:
            yield now.timeout(BEAT_S)
            with main.request() as mine:
                yield mine
                new, known = told[0] - known, told[0]
                yield has("worker's process", costs.beat + costs.learn * new)

    for _ in range(workers):
        main, ready = simpy.Resource(now), simpy.Store(now, capacity=COMPILERS)
        for _ in range(COMPILERS):
            now.process(breeds(main, ready))
        now.process(searches(main, ready))
        now.process(beats(main))
    now.run(until=SECONDS)
    many = {"GPU": workers, "compilers": workers * COMPILERS, "worker's process": workers, "study's lock": 1}
    used = {part: round(min(busy[part] / many[part] / SECONDS, 1.0), 3) for part in busy}
    limit = max(used, key=lambda part: used[part])
    return {"workers": workers, "raced an hour": round(told[0] * 3600 / SECONDS), "limit": limit, "busy": used}


@click.command()
@click.option("--storage", required=True, help="the URL of an empty database")
@click.option("--race", type=float, help="seconds of a race, measured on a GPU")
@click.option("--output", type=click.Path(path_type=Path), required=True)
def main(storage: str, race: float | None, output: Path) -> None:
    """Measure what a candidate costs, and simulate searches of many workers."""
    costs = measured(storage, race)
    numbers = {name: float(f"{value:.3g}") for name, value in asdict(costs).items()}
    calls = numbers.pop("calls")
    found = {
        "date": datetime.date.today().isoformat(),
        "cores": os.cpu_count(),
        "race": "measured" if race else "reckoned, without a GPU",
        "seconds": numbers,
        "calls of the storage for a candidate": calls,
        "simulated": [simulated(costs, workers) for workers in WORKERS],
    }
    output.write_text(yaml.safe_dump(found, sort_keys=False, width=120))


if __name__ == "__main__":
    main()
