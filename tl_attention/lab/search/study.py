"""A study keeps, in a storage, what a search proposed and found: whoever goes on with it loses nothing that was told.

A trial is one schedule that was judged legal, or that the sampler proposed, and is added when it has ended. Its
parameters are those of `Parameters`, and its user attributes are `source`, where it came from, `worker`, who ended it,
and `result`, what became of it. The sampler sees all workers' trials in a study that this process has in its memory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.storages.journal import JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection, select

from tl_attention.errors import InputError
from tl_attention.lab.search.leases import Leases, Taken
from tl_attention.lab.search.parameters import Parameters, Point
from tl_attention.lab.search.storage import WORKERS, Log, Storage
from tl_attention.problem.shape import AttentionShape

# Where a proposal comes from: a person, a draw, a change of what was good, Optuna's sampler.
QUEUED, DRAWN, CHANGED, SAMPLED = ("queued", "drawn", "changed", "sampled")
# The sampler models what was told once there are so many; before, it draws.
FIRST_MODELLED = 40


@dataclass(frozen=True)
class Result:
    """A Result is what became of a trial."""

    number: int
    source: str
    point: Point
    worker: int = 0
    at: float = 0.0  # seconds of search before it
    reason: str = ""  # why it was not timed
    failed: bool = False  # it is not right, or could not be compiled or run; else something said that it cannot win
    schedule: int | None = None  # a number, which equal schedules share; None for what is no legal one
    fingerprint: str | None = None  # of the generated code
    machine_code: str | None = None  # a name, which equal machine code shares
    registers: int | None = None
    stack_bytes: int | None = None
    guessed_ms: float | None = None  # before anything was compiled
    predicted_ms: float | None = None
    ms: float = 0.0
    ratios: tuple[float, ...] = ()  # log(time of the incumbent / its time) of each round
    verdict: str = ""
    cells: tuple[float, ...] = ()  # of several problems, each as `value` is of one
    cells_ms: tuple[float, ...] = ()  # the time of each
    against: int | None = None  # the incumbent's number
    # log(time of the first that was timed / its time), by the rounds of each incumbent with the next.
    value: float = 0.0

    @property
    def median(self) -> float:
        """Returns the median of the ratios, 0 for the first that was timed."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def name(self) -> str:
        return trial_name(self.number)


class Worker(NamedTuple):
    """A Worker is one process that worked on a study; `told` is what it last said of itself."""

    number: int
    name: str
    state: str
    lapses: int  # how often its lease has lapsed
    told: dict[str, Any]


class Study:
    """A Study holds the trials of one problem on one card, by one version of what makes kernels, in one space.

    `of` says these by their names. Without a `worker`, a name, it is read only. Raises InputError where the storage
    cannot be used, where a study of this name is of something else, and where there is none that could be read.
    """

    def __init__(
        self,
        url: str,
        name: str,
        of: Mapping[str, str],
        parameters: Parameters,
        seed: int,
        worker: str | None = "a worker",
        others: tuple[AttentionShape, ...] = (),
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # A signal that ends the command inside of a call of the database is no error of the pool.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        self.name, self.parameters, self._storage = name, parameters, Storage(url)
        # The other problems, where there are several.
        self.others = others
        self._distributions = {name: _distribution(values) for name, values in parameters.values.items()}
        self.where = f"study {name} in {self._storage.shown}"
        there, missing = self._storage.of(name), f"there is no {self.where}, expected one that a search has begun"
        if there is None:
            if worker is None:
                raise InputError(f"--study: {missing}")
            self._storage.begin(name, of)
            there = self._storage.of(name) or {}
        for what, value in of.items():
            if there.get(what) != value:
                raise InputError(
                    f"--study: {self.where} is of the {what} {there.get(what)}, expected another study for {value}"
                )
        self.of = there
        self._storage.wait_if_away()
        self._leases = Leases(self._storage, name, worker) if worker else None
        self.number = self._leases.number if self._leases else 0
        sampler = optuna.samplers.TPESampler(n_startup_trials=FIRST_MODELLED, seed=seed + self.number)
        self._sampled = optuna.create_study(sampler=sampler, direction="maximize")
        journal = JournalStorage(Log(self._storage, name, self._ends))
        if not journal.get_all_studies():
            if worker is None:
                raise InputError(f"--study: {missing}")
            optuna.create_study(storage=journal, study_name=name, direction="maximize", load_if_exists=True)
        self._study = optuna.load_study(storage=journal, study_name=name)
        self.results: list[Result] = []
        self.refresh()

    @property
    def leases(self) -> Leases:
        """Returns this worker's leases; only one that is read has none."""
        assert self._leases, f"{self.where} is read"
        return self._leases

    def refresh(self) -> list[Result]:
        """Takes over what was told since, by whichever worker, and returns it."""
        trials = self._study.get_trials(deepcopy=False)[len(self.results) :]
        for trial in trials:
            self._sampled.add_trial(trial)
        new = [*map(self._result, trials)]
        self.results += new
        return new

    def orphaned(self) -> Iterator[tuple[str, Point, str]]:
        """Yields (source, point, key) of what a worker held that is gone, each held by this one now."""
        while self.leases.orphans:
            key, text = self.leases.orphans.pop(0)
            if self.leases.claim(key):
                work = json.loads(text)
                yield work["source"], self._point(work["point"]), key

    def claim(self, what: str, point: Point | None = None, source: str = "") -> str:
        """Returns a key that this worker holds now of what, "" where another one has it, or it was ended.

        With a point, who takes it over when this worker is gone proposes that point again.
        """
        work = json.dumps({"source": source, "point": _params(point)}) if point else None
        return what if self.leases.claim(what, work) else ""

    def ask(self) -> Point:
        """Returns what the sampler proposes, which takes the longer the more trials there are."""
        trial = self._sampled.ask(self._distributions)
        # It is told as others are, when it has ended.
        self._sampled.tell(trial, state=TrialState.FAIL)
        return self._point(trial.params)

    def tell(self, point: Point, source: str, keys: Sequence[str] = (), **result: Any) -> Result | None:
        """Adds an ended trial with its Result, of which the fields behind `worker` are given, and ends what it held.

        Returns None where another worker has taken it over, or has told this point before: then nothing is added.
        """
        timed = "reason" not in result
        state = TrialState.FAIL if result.get("failed") else TrialState.COMPLETE if timed else TrialState.PRUNED
        told = {
            "source": source,
            "worker": self.leases.number,
            "result": result,
            "keys": [*keys],
            "id": point_key(point),
        }
        trial = create_trial(
            state=state,
            value=result["value"] if timed else None,
            params=(params := _params(point)),
            distributions={name: self._distributions[name] for name in params},
            user_attrs=told,
        )
        with suppress(Taken):
            self._study.add_trial(trial)
        return next((one for one in self.refresh() if one.worker == self.number and one.point == point), None)

    def _ends(self, connection: Connection, told: dict[str, Any]) -> None:
        self.leases.end(connection, told["keys"], told["id"])

    def workers(self) -> list[Worker]:
        """Returns all that have worked on this study, in the order in which they joined."""
        c = WORKERS.c
        asked = select(c.worker, c.name, c.state, c.lapses, c.told).where(c.study == self.name).order_by(c.worker)
        rows = self._storage.do(lambda connection: connection.execute(asked).all())
        return [Worker(*row[:-1], json.loads(row[-1])) for row in rows]

    @property
    def timed(self) -> list[Result]:
        """Returns the results that were timed, the best first; of equal ones that first which was seen to be faster."""
        found = [result for result in self.results if result.verdict]
        return sorted(found, key=lambda result: (result.value, result.median), reverse=True)

    def note(self, **values: Any) -> None:
        """Keeps values of the whole study by their names, in place of those of these names."""
        for name, value in values.items():
            self._study.set_user_attr(name, value)

    def noted(self, name: str, otherwise: Any) -> Any:
        """Returns a value of the whole study, or another where none is kept."""
        return self._study.user_attrs.get(name, otherwise)

    def mattered(self) -> dict[str, float]:
        """Returns how much each parameter mattered among the best tenth, most first; {} for too few trials."""
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        if len(self.timed) < FIRST_MODELLED:
            return {}
        return optuna.importance.get_param_importances(self._sampled, evaluator=evaluator)

    def _result(self, trial: FrozenTrial) -> Result:
        told = trial.user_attrs["result"]
        given = {name: trial.user_attrs[name] for name in ("source", "worker")}
        given |= {"number": trial.number, "point": self._point(trial.params)}
        return Result(**given, **told | {name: tuple(told.get(name, ())) for name in ("ratios", "cells", "cells_ms")})

    def _point(self, params: Mapping[str, Any]) -> Point:
        values = self.parameters.values
        return {name: next(one for one in values[name] if _stored(one) == params[name]) for name in values}


def point_key(point: Point) -> str:
    """Returns the key of a claim to a point."""
    return f"point {hashlib.sha256(json.dumps(_params(point), sort_keys=True).encode()).hexdigest()[:32]}"


def trial_name(number: int) -> str:
    """Returns the name by which a trial's kernel, rows and page know it."""
    return f"trial {number}"


def _distribution(values: tuple[Any, ...]) -> BaseDistribution:
    if all(type(value) is int for value in values) and values == (*range(values[0], values[-1] + 1),):
        return IntDistribution(values[0], values[-1])
    return CategoricalDistribution([*map(_stored, values)])


def _params(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _stored(value) for name, value in point.items()}


def _stored(value: Any) -> Any:
    """Returns a parameter's value as Optuna stores it: JSON for a list and a mapping."""
    return json.dumps(value) if isinstance(value, list | dict) else value
