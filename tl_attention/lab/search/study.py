"""A study keeps, in Optuna's storage, what a search proposed and found: whoever resumes it loses nothing that was told.

A trial is one schedule that was judged legal, or that the sampler proposed. Its parameters are those of `Parameters`,
and its user attributes are `source`, where it came from, and `result`, what became of it.
"""

from __future__ import annotations

import json
import logging
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from tl_attention.errors import InputError
from tl_attention.lab.search.parameters import Parameters, Point

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
    at: float = 0.0  # seconds of search before it
    reason: str = ""  # why it was not timed
    failed: bool = False  # it is not right, or could not be compiled or run; else something said that it cannot win
    fingerprint: str | None = None  # of the generated code
    machine_code: str | None = None  # a name, which equal machine code shares
    registers: int | None = None
    stack_bytes: int | None = None
    guessed_ms: float | None = None  # before anything was compiled
    predicted_ms: float | None = None
    ms: float = 0.0
    ratios: tuple[float, ...] = ()  # log(time of the incumbent / its time) of each round
    verdict: str = ""
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


class Study:
    """A Study holds the trials of one problem on one card, by one version of what makes kernels, in one space.

    `of` says these by their names. Raises InputError where the storage cannot be used, where a study of this name is
    of something else, and where there is none and none may `begin`. Passwords of a URL are not shown.
    """

    def __init__(
        self, url: str, name: str, of: Mapping[str, str], parameters: Parameters, seed: int, begin: bool = True
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # A signal that ends the command inside of a call of the database is no error of the pool.
        logging.getLogger("sqlalchemy.pool").setLevel(logging.CRITICAL)
        self.name, self.parameters = name, parameters
        self._distributions = {name: _distribution(values) for name, values in parameters.values.items()}
        sampler = optuna.samplers.TPESampler(n_startup_trials=FIRST_MODELLED, seed=seed)
        try:
            # A password may stand among the options too.
            shown = make_url(url).set(query={}).render_as_string(hide_password=True)
        except (ArgumentError, ValueError):
            raise InputError("--storage: no URL of a database, expected one such as sqlite:///runs/search.db") from None
        self.where = f"study {name} in {shown}"
        try:
            storage = optuna.storages.RDBStorage(url)
            if storage.engine.dialect.name == "sqlite":
                _write_ahead(storage.engine)
            if begin:
                optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
            elif name not in optuna.get_all_study_names(storage):
                raise InputError(f"--study: there is no {self.where}, expected one that a search has begun")
            self._study = optuna.load_study(storage=storage, study_name=name, sampler=sampler)
        except InputError:
            raise
        except (SQLAlchemyError, ImportError, RuntimeError, ValueError, optuna.exceptions.OptunaError) as error:
            raise InputError(f"--storage: {self.where} cannot be used: {_first_line(error)}") from None
        for what, value in of.items():
            there = self._study.user_attrs.get(what)
            if there is None and not self._study.trials:
                self._study.set_user_attr(what, value)
            elif there != value:
                raise InputError(f"--study: {self.where} is of the {what} {there}, expected another study for {value}")
        for half in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if "result" in half.user_attrs:
                self._end(half.number, half.user_attrs["result"])
        ended = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
        found = self._study.get_trials(deepcopy=False, states=ended)
        # One that a search did not end, but the next one, has no result.
        self.results = [self._result(trial) for trial in found if "result" in trial.user_attrs]

    def interrupted(self) -> Iterator[tuple[Trial, Point]]:
        """Yields trials of a search that was ended before it told what became of them, each begun again."""
        states = (TrialState.RUNNING, TrialState.WAITING)
        for left in self._study.get_trials(deepcopy=False, states=states):
            if left.state == TrialState.RUNNING:
                self._study.tell(left.number, state=TrialState.FAIL)
                # One that was added has its whole point here, even where it was half begun.
                params = left.system_attrs.get("fixed_params", left.params)
                # One that the sampler had begun to propose has no whole point.
                if {*params} != {*self._distributions}:
                    continue
                self._study.enqueue_trial(params, user_attrs={"source": left.user_attrs.get("source", SAMPLED)})
            trial = self._study.ask(self._distributions)
            yield trial, self._point(trial.params)

    def add(self, point: Point, source: str) -> Trial:
        """Begins the trial of a point that was judged legal."""
        params = {name: _stored(value) for name, value in point.items()}
        self._study.enqueue_trial(params, user_attrs={"source": source})
        return self._study.ask(self._distributions)

    def ask(self) -> tuple[Trial, Point]:
        """Begins a trial of what the sampler proposes, which takes the longer the more trials there are."""
        trial = self._study.ask(self._distributions)
        trial.set_user_attr("source", SAMPLED)
        return trial, self._point(trial.params)

    def tell(self, trial: Trial, **result: Any) -> Result:
        """Ends a trial with its Result, of which the fields behind `point` are given."""
        trial.set_user_attr("result", result)
        told = self._result(self._end(trial.number, result))
        self.results.append(told)
        return told

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
        return optuna.importance.get_param_importances(self._study, evaluator=evaluator)

    def _end(self, number: int, result: Mapping[str, Any]) -> FrozenTrial:
        timed = "reason" not in result
        state = TrialState.FAIL if result.get("failed") else TrialState.COMPLETE if timed else TrialState.PRUNED
        return self._study.tell(number, result["value"] if timed else None, state)

    def _result(self, trial: FrozenTrial) -> Result:
        told = trial.user_attrs["result"]
        given = {"number": trial.number, "source": trial.user_attrs["source"], "point": self._point(trial.params)}
        return Result(**given, **told | {"ratios": tuple(told.get("ratios", ()))})

    def _point(self, params: Mapping[str, Any]) -> Point:
        values = self.parameters.values
        return {name: next(one for one in values[name] if _stored(one) == params[name]) for name in values}


def trial_name(number: int) -> str:
    """Returns the name by which a trial's kernel, rows and page know it."""
    return f"trial {number}"


def _distribution(values: tuple[Any, ...]) -> BaseDistribution:
    if all(type(value) is int for value in values) and values == (*range(values[0], values[-1] + 1),):
        return IntDistribution(values[0], values[-1])
    return CategoricalDistribution([*map(_stored, values)])


def _stored(value: Any) -> Any:
    """Returns a parameter's value as Optuna stores it: JSON for a list and a mapping."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def _write_ahead(engine: Engine) -> None:
    """Has SQLite write ahead and not wait for the disk: a trial has a hundred writes, which take seconds otherwise.

    What was written survives the death of the process, not that of the machine.
    """

    @event.listens_for(engine, "connect")
    def _(connection: Any, record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    # What is connected already is not in this mode.
    engine.dispose()


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
