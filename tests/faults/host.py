"""Faults here change values of the host's plan, each by its path in the plan, such as descriptors.K_desc.box.1.

What only C can do wrong is not read any more: an argument's type, number or place on the stack of a call, a call that is
left out or fails, memory of a descriptor that another one has, a check that assigns. `tests/test_host_ir.py` changes IR.
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
        # An expression is a text of its own.
        place[key] = {"text": value} if isinstance(before, dict) else type(before)(value)
        assert place[key] != before, f"{path} is {value} already"
    return json.dumps(plan, indent=1)


def _key(place: Any, step: str) -> Any:
    if isinstance(place, dict):
        return step
    names = [entry["name"] if isinstance(entry, dict) and "name" in entry else None for entry in place]
    return names.index(step) if step in names else int(step)
