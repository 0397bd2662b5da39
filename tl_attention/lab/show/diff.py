"""Two schedules may differ in their keys, in their Programs, and in the code that comes of them.

To compare keys and Programs takes neither torch nor tilelang. Each part says in a line when there is no difference.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from tl_attention.errors import InputError
from tl_attention.lab.show.explain import program_parts
from tl_attention.problem.card import Card
from tl_attention.program.limits import of_other_card
from tl_attention.program.planned import Planned
from tl_attention.schedule.key_words import dotted
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.lab.measure.compilation import Compiled
    from tl_attention.problem.shape import AttentionShape

# Longer values stand below each other.
LINE = 100


def changed_keys(a: Schedule, b: Schedule) -> Iterator[tuple[str, str, str]]:
    """Yields (key, its value in a, its value in b), as text, for each key whose values in two schedules differ.

    A default is a value like any other.
    """
    before, after = _flat(a), _flat(b)
    # In the order of the files: a key of a mapping that only one of them has follows the others.
    for key in {**before, **after}:
        if before.get(key) != after.get(key):
            was, now = (_spelled(flat[key]) if key in flat else "none" for flat in (before, after))
            yield dotted(key), was, now


def keys(a: Schedule, b: Schedule) -> list[str]:
    """Returns lines that list the keys in which two schedules differ, with the values in both."""
    changed = list(changed_keys(a, b))
    if not changed:
        return ["keys: equal"]
    lines = [f"keys: {len(changed)} differ" if len(changed) > 1 else "keys: 1 differs"]
    for key, was, now in changed:
        line = f"  {key}{was} -> {now}"
        below = [f"  {key.rstrip()}", f"    - {was}", f"    + {now}"]
        lines += [line] if len(line) <= LINE else below
    return lines


def program_text(schedule: Schedule) -> list[str]:
    """Returns a schedule's Program as lines of text, [] for a schedule without one.

    Raises ScheduleRefused where the Program cannot be derived.
    """
    derived = Planned(schedule).program
    if derived is None:
        return []
    parts = program_parts(schedule, derived)
    return [f"{derived.model} model", f"buffers: {derived.rings}", *"\n".join(parts).splitlines()]


def program(before: list[str], after: list[str], names: tuple[str, str]) -> list[str]:
    """Returns the unified diff of two Programs' lines, or a line that says they are equal or which is missing.

    Prologue, steady state and epilogue are as explain shows them.
    """
    if before == after:
        return ["program: equal"] if before else ["program: neither has one, the compiler decides the order"]
    if not before or not after:
        return [f"program: {'a' if after else 'b'} has none, the compiler decides the order"]
    return ["program: differs", *(f"  {line}" for line in difflib.unified_diff(before, after, *names, lineterm=""))]


def code(a: Schedule, b: Schedule, names: tuple[str, str], shape: AttentionShape, card: Card) -> list[str]:
    """Compiles both schedules for the card, and returns lines that say where the compiled code differs.

    The code is for any sizes; `shape` gives head_dim, dtype and mask. This takes 10 s or so. Raises InputError where
    one of the schedules cannot be built.
    """
    from tl_attention.lab.measure.candidate import Candidate
    from tl_attention.lab.measure.compilation import compile_all

    candidates = [
        Candidate(f"{side}: {name}", shape, Planned(s), sms=card.sms, arch=card.arch)
        for side, name, s in zip("ab", names, (a, b))
    ]
    compiled = compile_all(candidates)
    before, after = (compiled[candidate] for candidate in candidates)
    heading = f"code: head_dim {shape.head_size} {shape.dtype}{shape.mask.suffix}{of_other_card(card)}"
    failed = next((name for name, made in zip(names, (before, after)) if made.error), None)
    if failed:
        made = before if before.error else after
        raise InputError(f"{failed}: {made.status}: {made.error}")
    if before.fingerprint == after.fingerprint:
        return [f"{heading}: equal, {before.fingerprint}"]
    return [f"{heading}: differs", *_compared(_facts(before), _facts(after))]


def _flat(model: BaseModel, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns a dict from the path of each key of a model, and of models nested in it, to the key's value."""
    flat: dict[tuple[str, ...], Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        flat |= _flat(value, (*above, name)) if isinstance(value, BaseModel) else {(*above, name): value}
    return flat


def _spelled(value: Any) -> str:
    """Returns a value as a schedule file spells it, `default` for None."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"[{', '.join(map(_spelled, value))}]" if isinstance(value, tuple) else str(value)


def _facts(compiled: Compiled) -> dict[str, str]:
    """Returns, as text by name, compiled code's fingerprint, registers, spills, shared memory and steady loop."""
    from tl_attention.lab.machine_code.sass import steady

    report, loop = compiled.report, steady(compiled.report.loops) if compiled.report else None
    assert report is not None and compiled.fingerprint is not None
    facts = {
        "fingerprint": compiled.fingerprint,
        "registers": f"{report.registers}",
        "spills": f"{report.stack_bytes} bytes",
        "shared memory": f"{report.shared_bytes:,} bytes",
    }
    if loop is not None:
        facts |= {"steady loop": f"{loop.instructions} instructions", "exponentials": f"{loop.exponentials}"}
        facts |= {f"  {name}": f"{count}" for name, count in loop.counts.items()}
        facts |= {name: f"after {', '.join(map(str, places))}" for name, places in loop.places.items()}
    return facts


def _compared(before: dict[str, str], after: dict[str, str]) -> list[str]:
    facts = list({**before, **after})
    same = [fact for fact in facts if before.get(fact) == after.get(fact)]
    width = max(map(len, facts))
    lines = [
        f"  {fact:{width}}  {before.get(fact, 'none')} -> {after.get(fact, 'none')}"
        for fact in facts
        if fact not in same
    ]
    return [*lines, f"  equal: {', '.join(fact.strip() for fact in same)}"] if same else lines
