"""`Schedule`: the frozen description of one kernel.

The rules that it meets by itself are in `rules.py`, those that need the problem or the device in `limits.py`;
dependences are proved in `legality.py`.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import model_validator

from tl_attention.errors import InputError
from tl_attention.loop.attention import NAMES, NUMBER
from tl_attention.loop.table import whole
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted
from tl_attention.schedule.keys import PRODUCER, Keys
from tl_attention.schedule.option_label import options_from_label, options_label
from tl_attention.schedule.rules import rules_of


class Schedule(Keys):
    """One schedule: keys that obey every rule of its lowering."""

    @model_validator(mode="after")
    def _obeys_every_rule(self) -> Schedule:
        for rule in rules_of(self.dialect):
            rule(self)
        return self

    @property
    def label(self) -> str:
        """The schedule in one word; `Schedule.from_label` reads it back.

        Each group is its statement numbers, then `p` for a producer or `o<order>s<stage>`. Options that are not the
        default follow, each after a `~`.
        """
        parts = [self.lowering, f"{self.block_M}x{self.block_N}", f"t{self.threads}", f"n{self.num_stages}"]
        if self.kv_order == "descending":
            parts.append("desc")
        for group, order, stage in zip(self.group, self.order, self.stage):
            place = "p" if order == PRODUCER else f"o{order}s{stage}"
            parts.append(_runs(group) + place)
        return "~".join(["_".join(parts), *options_label(self)])

    @classmethod
    def from_label(cls, label: str) -> Schedule:
        """The schedule whose `label` this is. Raises InputError."""
        order_part, *option_parts = label.split("~")
        head = re.fullmatch(rf"([a-z_]+?)_({N})x({N})_t({N})_n({N})(_desc)?((?:_[^_]+)*)", order_part)
        if head is None:
            raise InputError(f"label: {label[:80]!r} is not a schedule's label, expected such as {EXAMPLE_LABEL}")
        fields: dict[str, Any] = {"lowering": head[1], "kv_order": "descending" if head[6] else "ascending"}
        fields |= zip(("block_M", "block_N", "threads", "num_stages"), map(int, head.groups()[1:5]))
        groups, orders, stages = [], [], []
        for part in head[7].split("_")[1:]:
            match = re.fullmatch(rf"({RUN}(?:\+{RUN})*)(?:p|o({N})s({N}))", part)
            if match is None:
                expected = "expected such as 3-11o3s0 or 0p"
                raise InputError(f"label: {part[:40]!r} in {label[:80]!r} is not a group, {expected}")
            groups.append(_from_runs(match[1]))
            orders.append(int(match[2] or PRODUCER))
            stages.append(int(match[3] or PRODUCER))
        try:
            schedule = cls(**fields, group=groups, order=orders, stage=stages, **options_from_label(option_parts))
        except ValueError as error:
            key, message = first_error(error, cls)
            raise InputError(f"label: {label[:80]!r}: {dotted(key)}{message}") from None
        if schedule.label != label:
            raise InputError(f"label: {label[:80]!r} is not spelled as labels are, expected {schedule.label}")
        return schedule


# A number of a label; longer ones fit no key.
N = "[0-9]{1,6}"
RUN = rf"(?:{N}\.{N}|{N}(?:-{N})?)"
EXAMPLE_LABEL = "pipelined_128x128_t256_n2_0p_1-2o0s0_3-11o3s0_12o1s1_13p_14o2s1"


def _runs(group: tuple[str, ...]) -> str:
    """Statements 3, 4, 5, 9 and chunk 1 of 8 -> 3-5+9+8.1."""
    runs: list[list[int | str]] = []
    for name in group:
        number = NUMBER[whole(name)]
        if name != whole(name):
            runs.append([f"{number}.{name.partition('.')[2]}"] * 2)
        elif runs and isinstance(runs[-1][1], int) and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _from_runs(text: str) -> list[int | str]:
    statements: list[int | str] = []
    for run in text.split("+"):
        number, dot, chunk = run.partition(".")
        if dot:
            statements.append(f"{NAMES[int(number)]}.{chunk}" if int(number) < len(NAMES) else run)
            continue
        first, _, last = run.partition("-")
        statements += range(int(first), min(int(last or first), len(NAMES)) + 1)
    return statements
