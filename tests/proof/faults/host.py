"""Faults here change values of the host's plan, each by its path in the plan, such as descriptors.K_desc.box.1.

Faults that only the C has are not read any more: "a descriptor that is not an address" and "an argument that is not an
integer" (an argument's type on the stack of a call), "a descriptor that is not made" (a call of no arguments), "an
assumption of another form" (a check that assigns). "A tensor of another's address", "the LSE where the output belongs"
and "a descriptor made in another's place" are changes of the IR, in `tests/proof/test_host_ir.py`.
"""

import json
from collections.abc import Iterable
from typing import Any


def edited(text: str, edits: Iterable[tuple[str, str]]) -> str:
    """Returns the plan with other values at these paths; an entry of a list has its number or its name."""
    plan = json.loads(text)
    for path, value in edits:
        *steps, last = path.split(".")
        place = plan
        for step in steps:
            place = place[_key(place, step)]
        key = _key(place, last)
        before = place[key]
        # An expression is a text of its own, and a list is one of names.
        made = {"text": value} if isinstance(before, dict) else value.split() if isinstance(before, list) else None
        place[key] = type(before)(value) if made is None else made
        assert place[key] != before, f"{path} is {value} already"
    return json.dumps(plan, indent=1)


def _key(place: Any, step: str) -> Any:
    if isinstance(place, dict):
        return step
    names = [entry["name"] if isinstance(entry, dict) and "name" in entry else None for entry in place]
    return names.index(step) if step in names else int(step)
