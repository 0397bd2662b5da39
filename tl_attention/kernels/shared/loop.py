"""A schedule fixes the loop of a kernel that is emitted from its Program, its tile and its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tl_attention.program.planned import Planned
from tl_attention.program.program import Iteration, Operation, Program
from tl_attention.schedule.loop.loops import stages_option


class EmittedLoop(NamedTuple):
    """An EmittedLoop is a Program's prologue, steady iteration and epilogue, with what a kernel needs to emit them."""

    prologue: tuple[Iteration, ...]
    steady: Iteration  # repeats from `start` up to `end`
    epilogue: tuple[Iteration, ...]
    end: int  # counts from the number of blocks
    least_blocks: int
    loads: tuple[str, ...]  # in the producer's order
    # What a statement's macro takes by name, (first, end) of a chunk's columns among it.
    named: dict[str, dict[str, Any]]

    @property
    def start(self) -> int:
        """Returns the number of the steady state's first iteration."""
        return self.steady.t

    @property
    def unmasked(self) -> tuple[Operation, ...]:
        """Returns the operations of the steady iteration without the mask, for blocks that need none."""
        return tuple(op for op in self.steady.operations if op.statement != "mask")

    @property
    def masked_lag(self) -> int:
        """Returns for how many iterations a masked block stays in use, the largest lag of a `run` operation."""
        return max(op.lag for op in self.steady.operations if op.kind == "run")

    @property
    def mask_lag(self) -> int:
        """Returns the lag of the mask in iterations, so that KV block t is masked in iteration t + lag."""
        return next(op.lag for op in self.steady.operations if op.statement == "mask")

    @classmethod
    def of(cls, program: Program, named: Mapping[str, Mapping[str, Any]] = {}) -> EmittedLoop:
        """Makes the EmittedLoop of a Program, with the keyword arguments of each statement's macro.

        `named` gives those that a lowering's macros take besides columns.
        """
        phases = program.phases
        columns = {s.name: {"columns": s.columns} for s in program.table.statements if s.columns}
        return cls(
            phases.prologue,
            phases.steady,
            phases.epilogue,
            end=phases.end,
            least_blocks=program.least_blocks,
            loads=program.loads,
            named={name: {**named.get(name, {}), **columns.get(name, {})} for name in {**named, **columns}},
        )


def emitted(
    planned: Planned, named: Mapping[str, Mapping[str, Any]] = {}, *, rings_of_a_tile: bool, **options: Any
) -> dict[str, Any]:
    """Returns, by name, the constants of an emitted kernel that the planned schedule determines, such as its loop.

    `options` replace what the schedule has in `kernel`. `named` is as `Loop.of` takes it.
    """
    schedule, program = planned.schedule, planned.program
    assert program is not None
    stages = {stages_option(load): count for load, count in program.buffers.items()}
    return {
        "block_M": schedule.block_M,
        "tile_rows": schedule.block_M,
        "block_N": schedule.block_N,
        "loop": EmittedLoop.of(program, named),
        "kernel": schedule.kernel.model_copy(update={**stages, **options}),
        "softmax": schedule.softmax,
        "rings_of_a_tile": rings_of_a_tile and max(stages.values()) > 1,
    }
