"""Keys has the keys of a schedule, with what each may hold by itself and what they say together.

The rules between keys are in `rules.py`; `schedule.py` holds a schedule to them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt
from pydantic_core import PydanticKnownError

from tl_attention.schedule.dialect import Dialect, dialect_of, dialects
from tl_attention.schedule.loop.loops import FORWARD, LOOPS, stages_option
from tl_attention.schedule.loop.slots import in_slots
from tl_attention.schedule.loop.table import Table, chunk_names, split_table
from tl_attention.schedule.options import KernelOptions, Releases, SoftmaxOptions, Split, StatementName, Waits

# In `order` and `stage`: a producer group.
PRODUCER = -1

Position = Annotated[StrictInt, Field(ge=PRODUCER)]


def _known_lowering(name: Any) -> Any:
    names = [dialect.name for dialect in dialects()]
    if name not in names:
        *others, last = map(repr, names)
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticKnownError("literal_error", {"expected": expected})
    return name


def _known_loop(name: Any) -> Any:
    if name not in LOOPS:
        *others, last = map(repr, LOOPS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})
    return name


def _describe_lowerings(schema: dict[str, Any]) -> None:
    """Puts the lowerings registered by then, with their words, into the JSON Schema of the key `lowering`."""
    schema["description"] = "; ".join(f"{dialect.name}: {dialect.words}" for dialect in dialects())
    schema["enum"] = [dialect.name for dialect in dialects()]


class Keys(BaseModel):
    """One schedule: tile, threads, number of buffers, and the group, order and stage of the loop's statements.

    `lowering: inferred` leaves order, stage and group to the compiler. `warp_specialized` adds a producer warpgroup,
    and takes the keys from `kernel` to `release_before`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", title="tl-attention schedule")

    lowering: Annotated[str, BeforeValidator(_known_lowering)] = Field(
        "pipelined", json_schema_extra=_describe_lowerings
    )
    loop: Annotated[str, BeforeValidator(_known_loop)] = Field(
        FORWARD,
        json_schema_extra={"enum": [*LOOPS]},
        description=(
            "the loop that it orders: forward computes attention; dq computes the gradient of Q, dkdv those of K and V"
        ),
    )
    block_M: StrictInt = Field(
        ge=64, le=256, multiple_of=64, description="query rows of one tile, in loop dkdv its rows of keys"
    )
    block_N: StrictInt = Field(
        ge=16, le=256, multiple_of=16, description="keys of one KV block, in loop dkdv queries of one block"
    )
    threads: StrictInt = Field(
        ge=128,
        le=512,
        multiple_of=128,
        description="threads that compute: 2 * block_M, or by mma_sync a warp for each 16, 32, 48 or 64 rows",
    )
    num_stages: StrictInt = Field(
        ge=1, le=8, description="buffers of K_shared, and of V_shared, that each producer group fills"
    )
    group: tuple[tuple[StatementName, ...], ...] = Field(
        (),
        description=(
            "the 15 statements, each in exactly one group, by name or by number 0 to 14 in source order, a split one "
            "by its chunks; by mma_sync also frag_q, frag_k and frag_v, 15 to 17; a group is contiguous in the order "
            "and shares a stage"
        ),
    )
    order: tuple[Position, ...] = Field(
        (),
        description=(
            "one entry per group: its position in the steady-state iteration, each of 0 to n-1 once; "
            "-1 marks a producer group, exactly one load, which runs ahead"
        ),
    )
    stage: tuple[Position, ...] = Field(
        (),
        description=(
            "one entry per group: with stage s it works on KV block t - s in steady-state iteration t; every stage "
            "from 0 to the largest is used; -1 where order is -1"
        ),
    )
    kv_order: Literal["ascending", "descending"] = Field(
        "ascending", description="in which order the KV blocks are visited"
    )
    kernel: KernelOptions = Field(KernelOptions(), description="how the kernel uses the machine")
    softmax: SoftmaxOptions = Field(SoftmaxOptions(), description="how the softmax is computed")
    split: Split = Field(
        Split(), description="statements cut into column chunks, which group names: exp into exp.0, exp.1, ..."
    )
    wait_before: Waits = Field(
        Waits(), description="statements before which a product is waited for, earlier than a dependence asks"
    )
    release_before: Releases = Field(
        Releases(), description="statements before which a buffer is released, later than when its last reader is done"
    )

    @property
    def has_program(self) -> bool:
        """Says whether the schedule's lowering lets it order the loop, so that there is a Program to prove and show."""
        return self.dialect.model is not None

    @property
    def dialect(self) -> Dialect:
        """Returns the dialect of the schedule's lowering for its loop: which keys and statements there are."""
        return dialect_of(self.lowering, self.loop)

    @property
    def statements(self) -> tuple[str, ...]:
        """Returns the names of the statements in this schedule's loop, or of the chunks that `split` makes of them.

        The groups partition them. These are the 15 of the source and those that only the lowering's loop has, without
        those that this schedule's loop lacks.
        """
        absent = self.dialect.absent(self)
        names = (name for name in (*self.dialect.source.names, *self.dialect.own_statements) if name not in absent)
        return tuple(chunk for name in names for chunk in chunk_names(name, self.split.columns(name)))

    @property
    def table(self) -> Table:
        """Returns the statements of the lowering's kernel with what they read and write, cut into chunks by `split`."""
        base, absent = self.dialect.table, self.dialect.absent(self)
        if absent:
            base = replace(base, statements=tuple(s for s in base.statements if s.name not in absent))
        chunks = {name: columns for name in base.splittable if (columns := self.split.columns(name))}
        table = split_table(base, chunks) if chunks else base
        if not table.slotted:
            return table
        return in_slots(table, [(name, stage) for names, stage in self.emission for name in names])

    def buffers(self, load: str) -> int:
        """Returns how many buffers a load such as "load_k" fills, by default num_stages."""
        number: int | None = getattr(self.kernel, stages_option(load))
        return self.num_stages if number is None else number

    @property
    def producers(self) -> tuple[str, ...]:
        """Returns the loads that run ahead, in the order in which the producer issues them."""
        return tuple(g[0] for g, order in zip(self.group, self.order) if order == PRODUCER)

    @property
    def emission(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """Returns (statements, stage) of each group that is not a producer, in the order of the steady state."""
        placed = [(order, g, stage) for g, order, stage in zip(self.group, self.order, self.stage) if order != PRODUCER]
        return tuple((g, stage) for _, g, stage in sorted(placed, key=lambda entry: entry[0]))

    @property
    def depth(self) -> int:
        """Returns how many pipeline stages the groups use, producers not counted."""
        return 1 + max((stage for _, stage in self.emission), default=0)
