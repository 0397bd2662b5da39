"""Schedules see the kernels of gradients like this: their statements, options, rules, and passes of a Program."""

from __future__ import annotations

from collections.abc import Mapping

from tl_attention.kernels.shared.emitted_rules import chunks_have_all_keys, masked_blocks_come_first, places_exist
from tl_attention.kernels.shared.wgmma import threads_fit_the_tile
from tl_attention.kernels.warp_specialized.dialect import (
    every_load_is_a_producers,
    everywhere,
    registers_fit_the_block,
    resident_releases,
    rows_have_registers,
)
from tl_attention.program.program import Iteration, Operation, Phases
from tl_attention.schedule.dialect import Check, Dialect
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.loops import LOOPS, stages_option
from tl_attention.schedule.schedule import Schedule

# LSE and D are kept for a multiple of so many rows.
PADDED_ROWS = 128
# A TMA box of numbers begins at a multiple of 16 bytes: at another place the GPU takes it for an illegal instruction.
TMA_NUMBERS = 4


def _rows_are_padded_to_128(s: Keys) -> None:
    # The dQ kernel leaves D, and an LSE that makes P zero, for all rows of its tiles, and dkdv reads whole blocks.
    rows, key = (s.block_M, "block_M") if s.loop == "dq" else (s.block_N, "block_N")
    if PADDED_ROWS % rows:
        raise RuleBroken(f"{rows}, expected a divisor of {PADDED_ROWS}: row vectors are padded to so many rows", key)


def _blocks_take_tile_after_tile(s: Keys) -> None:
    if s.kernel.tile_scheduler == "one_tile":
        raise RuleBroken(
            "one_tile, expected static or dynamic: blocks take a tile after the other", "kernel", "tile_scheduler"
        )


def fences(phases: Phases, schedule: Schedule, buffers: Mapping[str, int]) -> Phases:
    """Returns the phases with a fence before each release of a buffer that threads themselves have read.

    Without it the next load may go over row vectors that are still being read. One fence is enough for all that they
    have read before.
    """
    table = schedule.table
    read = {s.name: table.loads_of(s.name) for s in table.statements if s.kind == "vector"}
    loads = {load for of_statement in read.values() for load in of_statement}

    def change(iteration: Iteration) -> tuple[Operation, ...]:
        changed: list[Operation] = []
        fenced = False
        for op in iteration.operations:
            if op.kind == "release" and op.statement in loads and not fenced:
                changed.append(op._replace(kind="fence"))
                fenced = True
            elif op.kind == "run" and read[op.statement]:
                fenced = False
            changed.append(op)
        return tuple(changed)

    return everywhere(phases, change)


def dialect(loop: str, words: str) -> Dialect:
    """Returns how schedules see a loop's kernel, which does what `words` say."""
    table = LOOPS[loop]
    rules: tuple[Check, ...] = (
        threads_fit_the_tile,
        rows_have_registers,
        every_load_is_a_producers,
        masked_blocks_come_first,
        _rows_are_padded_to_128,
        _blocks_take_tile_after_tile,
        *chunks_have_all_keys(*table.splittable),
        places_exist(table.loads),
        registers_fit_the_block,
    )
    return Dialect(
        "warp_specialized",
        words,
        model="asynchronous",
        loop=loop,
        table=table,
        options=(
            *(f"kernel.{stages_option(load)}" for load in table.loads),
            "kernel.tile_scheduler",
            "kernel.registers",
            *(f"split.{statement}" for statement in table.splittable),
            *(f"wait_before.{product}" for product in table.products),
            *(f"release_before.{load}" for load in table.loads),
        ),
        rules=rules,
        passes=(fences, resident_releases),
        emitted=True,
    )
