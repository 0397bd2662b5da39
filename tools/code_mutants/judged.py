"""What a person has judged of mutants that the proof accepts, each with the reason why it does no harm."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Judgement:
    """Of every mutant of this operation whose line is of this kind, and matches the pattern from its start."""

    operation: str
    kind: str
    pattern: str
    reason: str


JUDGEMENTS: tuple[Judgement, ...] = ()


def reason(row: dict[str, Any]) -> str:
    """Why the mutant of this row does no harm; "" where nobody has said."""
    for judgement in JUDGEMENTS:
        same = (judgement.operation, judgement.kind) == (row["operation"], row["kind"])
        if same and re.match(judgement.pattern, row["shown"]):
            return judgement.reason
    return ""
