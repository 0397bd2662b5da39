"""`Schedule`: the frozen description of one kernel.

The rules that it meets by itself are in `schedule_rules.py`, those that need the problem or the device in `limits.py`;
dependences are proved in `legality.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from tl_attention.errors import InputError
from tl_attention.option_label import options_from_label, options_label
from tl_attention.options import KernelOptions, Releases, SoftmaxOptions, Split, Waits
from tl_attention.schedule_errors import dotted, first_error
from tl_attention.schedule_rules import PRODUCER, RULES
from tl_attention.statement_name import StatementName
from tl_attention.statements import (
    NAMES, NUMBER, SOURCE, SPLITTABLE, WARP_SPECIALIZED, Table, chunk_names, split_table, whole,
)


Position = Annotated[StrictInt, Field(ge=PRODUCER)]


class Schedule(BaseModel):
    """One schedule: tile, threads, ring depth, and the order, stage and group of the loop's statements.

    `group` partitions the 15 statements (names or numbers 0 to 14 in source order), or the chunks that `split` makes
    of them. `order` and `stage` have one entry per group. A group of stage s works on KV block t - s in steady-state
    iteration t; `order` is its position in the iteration. `-1` in both marks a producer group: one load, run ahead by
    `num_stages` buffers. `lowering: inferred` leaves order, stage and group to the compiler; `warp_specialized` adds a
    producer warpgroup, and takes the keys after `kv_order`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="tl-attention schedule")

    lowering: Annotated[
        Literal["pipelined", "warp_specialized", "inferred"],
        Field(description=(
            "pipelined: T.Pipelined with this order and stage; warp_specialized: a producer warp loads, products stay "
            "in flight; inferred: the compiler decides order and stage"
        )),
    ] = "pipelined"
    block_M: Annotated[StrictInt, Field(ge=64, le=256, multiple_of=64, description="query rows of one tile")]
    block_N: Annotated[StrictInt, Field(ge=16, le=256, multiple_of=16, description="keys of one KV block")]
    threads: Annotated[
        StrictInt, Field(ge=128, le=512, multiple_of=128, description="threads that compute, exactly 2 * block_M")
    ]
    num_stages: Annotated[
        StrictInt, Field(ge=1, le=8, description="buffers of K_shared and of V_shared that each producer group fills")
    ]
    group: Annotated[
        tuple[tuple[StatementName, ...], ...],
        Field(description=(
            "the 15 statements, each in exactly one group, by name or by number 0 to 14 in source order, a split one "
            "by its chunks; a group is contiguous in the order and shares a stage"
        )),
    ] = ()
    order: Annotated[
        tuple[Position, ...],
        Field(description=(
            "one entry per group: its position in the steady-state iteration, each of 0 to n-1 once; "
            "-1 marks a producer group, exactly one load, which runs ahead"
        )),
    ] = ()
    stage: Annotated[
        tuple[Position, ...],
        Field(description=(
            "one entry per group: with stage s it works on KV block t - s in steady-state iteration t; every stage "
            "from 0 to the largest is used; -1 where order is -1"
        )),
    ] = ()
    kv_order: Annotated[
        Literal["ascending", "descending"], Field(description="in which order the KV blocks are visited")
    ] = "ascending"
    kernel: Annotated[KernelOptions, Field(description="how the kernel uses the machine")] = KernelOptions()
    softmax: Annotated[SoftmaxOptions, Field(description="how the softmax is computed")] = SoftmaxOptions()
    split: Annotated[
        Split, Field(description="statements cut into column chunks, which group names: exp into exp.0, exp.1, ...")
    ] = Split()
    wait_before: Annotated[
        Waits, Field(description="statements before which a product is waited for, earlier than a dependence asks")
    ] = Waits()
    release_before: Annotated[
        Releases,
        Field(description="statements before which a buffer is released, later than when its last reader is done"),
    ] = Releases()

    @model_validator(mode="after")
    def _obeys_every_rule(self) -> Schedule:
        for rule in RULES:
            rule(self)
        return self

    @property
    def has_program(self) -> bool:
        """Whether this schedule orders the loop itself."""
        return self.lowering != "inferred"

    @property
    def statements(self) -> tuple[str, ...]:
        """The statements that the groups partition: the 15 of the source, or the chunks that `split` makes of them."""
        return tuple(chunk for name in NAMES for chunk in chunk_names(name, self.split.columns(name)))

    @property
    def table(self) -> Table:
        """The statements of the lowering's kernel, chunks as `split` says."""
        base = WARP_SPECIALIZED if self.lowering == "warp_specialized" else SOURCE
        chunks = {name: columns for name in SPLITTABLE if (columns := self.split.columns(name))}
        return split_table(base, chunks) if chunks else base

    def buffers(self, load: str) -> int:
        """Buffers that a producer group's load fills."""
        own = {"load_k": self.kernel.k_stages, "load_v": self.kernel.v_stages}[load]
        return self.num_stages if own is None else own

    @property
    def producers(self) -> tuple[str, ...]:
        """Loads that run ahead, in the order in which the producer issues them."""
        return tuple(g[0] for g, order in zip(self.group, self.order) if order == PRODUCER)

    @property
    def emission(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """(statements, stage) of each ordered group, in the order of the steady state."""
        placed = [(order, g, stage) for g, order, stage in zip(self.group, self.order, self.stage) if order != PRODUCER]
        return tuple((g, stage) for _, g, stage in sorted(placed, key=lambda entry: entry[0]))

    @property
    def depth(self) -> int:
        """Pipeline stages of the ordered groups."""
        return 1 + max((stage for _, stage in self.emission), default=0)

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
