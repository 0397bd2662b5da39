"""`Schedule` is the frozen description of one kernel.

`rules.py` has the rules between its keys. program/limits.py has the limits of a problem and a GPU, and
program/legality.py proves the dependences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, model_validator

from tl_attention.errors import InputError
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted
from tl_attention.schedule.keys import PRODUCER, Keys
from tl_attention.schedule.loop.loops import FORWARD, LOOPS, NAMES, NUMBER
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.options import OPTION_KEYS
from tl_attention.schedule.rules import rules_for


class Schedule(Keys):
    """A Schedule has keys that obey every rule of its lowering. It is frozen and hashable.

    Schedules with equal keys are equal. Read one with `load_schedule(name_or_file)` or `Schedule.from_label(label)`, or
    give the keys of a schedule file as keyword arguments. A key that the file may leave out has the same default here.
    Keys with a dot in a message, such as kernel.cluster, are attributes of an attribute: `schedule.kernel.cluster`.

    Attributes:
        loop: the loop that it orders, "forward", "dq" or "dkdv".
        lowering: which code generator makes the kernel: "inferred", "pipelined", "warp_specialized" or "mma_sync".
        block_M: query rows of one tile; of loop "dkdv" rows of keys.
        block_N: keys of one KV block; of loop "dkdv" queries of one block.
        threads: threads that compute; a producer warpgroup comes on top.
        num_stages: buffers of K, and of V, in shared memory.
        group: a tuple of groups; a group is a tuple of statement names, which stand together in the loop.
        order: for each group its position in an iteration; -1 marks a producer, a load that runs ahead.
        stage: for each group how many iterations it lags: in iteration t it works on KV block t - stage; -1 as above.
        kv_order: "ascending" or "descending", the order in which KV blocks are visited.
        kernel: how the kernel uses the GPU, such as clusters and operands.
        softmax: how the softmax is computed.
        split: statements that are cut into chunks of columns.
        wait_before: statements before which a product is waited for.
        release_before: statements before which a buffer is released.

    Raises: pydantic.ValidationError (a ValueError) for keys that break a rule. `load_schedule` and `from_label` raise
        InputError instead, which names the line or the label.
    """

    @model_validator(mode="after")
    def _obeys_every_rule(self) -> Schedule:
        for rule in rules_for(self):
            rule(self)
        return self

    def arithmetic(self, most_keys: int) -> tuple[Any, ...]:
        """Returns what decides the bits of a row of up to so many keys: schedules of equal arithmetic compute it alike.

        Keys enter a row's maximum, sum and products in blocks, counted from the sequence's first key, and in a thread's
        own order. Row tiles, buffers, the loop's order and chunks change none of these, and blocks of which a row sees
        no key add nothing to it.
        """
        softmax = self.softmax.model_dump(exclude={"row_max"})
        blocks = (self.block_N, self.kv_order) if most_keys > self.block_N else ()
        return self.lowering, *blocks, *map(str, softmax.values())

    def workers(self, sms: int) -> int:
        """Returns how many blocks, or clusters of blocks, of its kernel so many SMs hold at once; at least one."""
        # Blocks that are told nothing of clusters stand alone.
        each = 1 if self.dialect.takes("kernel.cluster") else self.kernel.cluster
        return self.kernel.workers(sms * each)

    @property
    def groups_heads(self) -> bool:
        """Says whether rows of several heads may be loaded and stored head by head."""
        return self.kernel.output == "vector" and self.kernel.q_operand == "shared"

    @property
    def splits_sequences(self) -> bool:
        """Says whether packed sequences may be split, each part with results of its own that another kernel merges."""
        kernel = self.kernel
        # TileLang gives the kernel that merges the parts the same clusters.
        return kernel.cluster == 1 and kernel.tile_scheduler != "one_tile" and kernel.output == "vector"

    @property
    def label(self) -> str:
        """Returns the schedule as one word without spaces, which `Schedule.from_label` reads back.

        Equal labels mean equal keys. The label names the lowering, the tile, `t` and the threads, `n` and the stages,
        `desc` for a descending kv_order, and a loop that is not the forward. Each group follows as the numbers of its
        statements and `p` for a producer, or `o<order>s<stage>`. Options that are not the default come last, each
        behind a `~`. An example is
        pipelined_128x128_t256_n2_0p_1-2o0s0_3-11o3s0_12o1s1_13p_14o2s1.
        """
        parts = [self.lowering, f"{self.block_M}x{self.block_N}", f"t{self.threads}", f"n{self.num_stages}"]
        if self.kv_order == "descending":
            parts.append("desc")
        if self.loop != FORWARD:
            parts.append(self.loop)
        for group, order, stage in zip(self.group, self.order, self.stage):
            place = "p" if order == PRODUCER else f"o{order}s{stage}"
            parts.append(_runs(group) + place)
        options = (part for path, value in changed_options(self) for part in _parts(path, value))
        return "~".join(["_".join(parts), *options])

    @classmethod
    def from_label(cls, label: str) -> Schedule:
        """Returns the schedule whose `label` is this text.

        Raises InputError (a ValueError) for text that is no label, for keys that break a rule, and for a label that is
        not spelled as `label` spells it.
        """
        order_part, *option_parts = label.split("~")
        head = re.fullmatch(rf"([a-z_]+?)_({N})x({N})_t({N})_n({N})(_desc)?(?:_({LOOP}))?((?:_[^_]+)*)", order_part)
        if head is None:
            raise InputError(f"label: {label[:80]!r} is not a schedule's label, expected such as {EXAMPLE_LABEL}")
        fields: dict[str, Any] = {"lowering": head[1], "kv_order": "descending" if head[6] else "ascending"}
        fields |= zip(("block_M", "block_N", "threads", "num_stages"), map(int, head.groups()[1:5]))
        groups, orders, stages = [], [], []
        fields |= {"loop": head[7]} if head[7] else {}
        for part in head[8].split("_")[1:]:
            match = re.fullmatch(rf"({RUN}(?:\+{RUN})*)(?:p|o({N})s({N}))", part)
            if match is None:
                expected = "expected such as 3-11o3s0 or 0p"
                raise InputError(f"label: {part[:40]!r} in {label[:80]!r} is not a group, {expected}")
            groups.append(_from_runs(match[1]))
            orders.append(int(match[2] or PRODUCER))
            stages.append(int(match[3] or PRODUCER))
        try:
            schedule = cls(**fields, group=groups, order=orders, stage=stages, **_options_from_label(option_parts))
        except ValueError as error:
            key, message = first_error(error, cls)
            raise InputError(f"label: {label[:80]!r}: {dotted(key)}{message}") from None
        if schedule.label != label:
            raise InputError(f"label: {label[:80]!r} is not spelled as labels are, expected {schedule.label}")
        return schedule


# A number of a label; longer ones fit no key.
N = "[0-9]{1,6}"
LOOP = "|".join(loop for loop in LOOPS if loop != FORWARD)
RUN = rf"(?:{N}\.{N}|{N}(?:-{N})?)"
EXAMPLE_LABEL = "pipelined_128x128_t256_n2_0p_1-2o0s0_3-11o3s0_12o1s1_13p_14o2s1"


def _runs(group: tuple[str, ...]) -> str:
    """Returns a group's statements by number, such as 3-5+9+8.1 for statements 3, 4, 5, 9 and chunk 1 of 8."""
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
        numbers = range(int(first), min(int(last or first), len(NAMES)) + 1)
        statements += (NAMES[number] if number < len(NAMES) else number for number in numbers)
    return statements


# --- options as parts of a label: `kernel.cluster=1`, `split.exp=48+128` ----------------------------------------------


def changed_options(schedule: BaseModel) -> Iterator[tuple[str, Any]]:
    """Yields (path such as kernel.cluster, value) of each option that is not the default."""
    for key in OPTION_KEYS:
        yield from _changed(key, getattr(schedule, key))


def _changed(prefix: str, options: BaseModel) -> Iterator[tuple[str, Any]]:
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if value != field.default:
            yield f"{prefix}.{name}", value


def _parts(path: str, value: Any) -> Iterator[str]:
    """Yields `path=value` for a changed option, or for each changed key below it."""
    if isinstance(value, BaseModel):
        for inner, inner_value in _changed(path, value):
            yield from _parts(inner, inner_value)
    else:
        yield f"{path}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _options_from_label(parts: list[str]) -> dict[str, Any]:
    """Returns a label's options, texts such as `kernel.cluster=1`, as nested dicts of values that pydantic checks."""
    fields: dict[str, Any] = {}
    for part in parts:
        path, equals, text = part.partition("=")
        if not equals or not PATH.fullmatch(path):
            raise InputError(f"label: {part[:40]!r} is not an option, expected such as kernel.cluster=1")
        *keys, last = path.split(".")
        inner = fields
        for key in keys:
            inner = inner.setdefault(key, {})
            if not isinstance(inner, dict):
                raise InputError(f"label: {part[:40]!r} is inside of an option that has a value already")
        inner[last] = _value(text)
    return fields


PATH = re.compile(rf"({'|'.join(OPTION_KEYS)})(\.[a-z0-9_]{{1,30}}){{1,2}}")
# What `_text` makes of a float that a schedule may have; a longer number fits no key.
FLOAT = re.compile(r"(?=.{3,24}$)[0-9]+(\.[0-9]+|(\.[0-9]+)?e-[0-9]+)", re.ASCII)
INTEGER = re.compile(r"[0-9]{1,6}", re.ASCII)


def _value(text: str) -> Any:
    if text in ("on", "off"):
        return text == "on"
    if "+" in text:
        return [_value(item) for item in text.split("+")]
    if INTEGER.fullmatch(text):
        return int(text)
    return float(text) if FLOAT.fullmatch(text) else text
