"""Reads what `submit --evaluate` recorded back from a line of JSON."""

from __future__ import annotations

import functools
from typing import Any

from tl_attention.errors import InputError
from tl_attention.leaderboard.results import Evaluation

# What a run takes; a deviation may be 0.
TIMES = ("mean_ms", "best_ms", "worst_ms", "median_ms", "p10_ms", "p90_ms")


def is_evaluation(values: dict[str, Any]) -> bool:
    """Whether a line's object is an evaluation of a submission; a row of `run` or `bench` is of a schedule."""
    return "submission" in values


def read_evaluation(line: bytes, values: dict[str, Any], where: str) -> tuple[str, Evaluation]:
    """(name, evaluation) of a line and its object; keys that are views of others are passed over.

    Raises InputError that begins with `where`.
    """
    from pydantic import ValidationError

    from tl_attention.schedule.key_errors import dotted, first_error

    try:
        evaluation = _validator().validate_json(line, strict=True)
    except ValidationError as error:
        key, message = first_error(error)
        raise InputError(f"{where}: evaluation: {dotted(key)}{message}") from None
    for number, row in enumerate(evaluation.rows):
        for name in TIMES if row.timing else ():
            if (time := getattr(row.timing, name)) <= 0:
                blamed = dotted(("rows", number, "timing", name))
                raise InputError(f"{where}: evaluation: {blamed}expected more than 0, found {time:g}")
    if not evaluation.rows:
        raise InputError(f"{where}: evaluation: rows: none, expected one for each test line")
    return str(values.get("name", evaluation.submission)), evaluation


@functools.cache
def _validator() -> Any:
    # Late: evaluating does not need it.
    from pydantic import TypeAdapter

    return TypeAdapter(Evaluation)
