"""`explain` describes a schedule: what it takes of the SM, its options, and who does what, when, after whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.card import HOPPER, Card
from tl_attention.problem.head_dims import HeadSize
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.limits import fragments_text, of_other_card, shared_text
from tl_attention.program.planned import Planned
from tl_attention.program.program import Iteration, Operation, Program, offset
from tl_attention.schedule.options import OPTION_KEYS, words_of
from tl_attention.schedule.schedule import Schedule

SET = "*"
# Gives the cycles that an operation costs in an iteration; None for one whose cycles are not known.
Costs = Callable[[Program, Operation], float | None]


def option_lines(schedule: Schedule) -> Iterator[str]:
    """Yields a line for each option in force, with its value, its meaning and a mark if the file sets it.

    An example is `* kernel.cluster 2: words`. A line without the mark has the default.
    """
    for key in OPTION_KEYS:
        options = getattr(schedule, key)
        for name, field in type(options).model_fields.items():
            value = getattr(options, name)
            if not schedule.dialect.takes(f"{key}.{name}"):
                continue
            if words := words_of(field, value):
                yield f"{SET if is_set(schedule, key, name) else ' '} {key}.{name}{_shown(value)}: {words}"


def is_set(schedule: Schedule, key: str, name: str) -> bool:
    """Says whether the schedule's file sets the option."""
    return key in schedule.model_fields_set and name in getattr(schedule, key).model_fields_set


def _shown(value: Any) -> str:
    """Returns a space and an option's value as a file spells it, "" for chunks and nested options."""
    if isinstance(value, bool):
        return f" {value}".lower()
    return f" {value}" if isinstance(value, str | int | float) else ""


# This mark stands before an operation that the Program has, and that the compiler places.
PLACED = "~"
# Words for operations that concern no one statement, and for operations that keep exponentials in their place.
ALONE = {
    "turn": "waited for, to issue products",
    "pass": "to the other warpgroup",
    "sync": "all threads",
    "keep": "Q in registers",
}
SHOWN_AS = {"hold_last": "hold"}
SAID = {
    "hold": ", all its exponentials",
    "hold_last": ", its last exponential",
    "resume": ", no exponential earlier",
    "share": ", by all warps, to the product that reads it",
}


def explain(
    planned: Planned, head_dim: HeadSize = 128, card: Card = HOPPER, opening: str = "", costs: Costs | None = None
) -> str:
    """Returns a text on what a schedule takes of the card's SM, on its options, and on its Program.

    The Program comes as prologue, steady state and epilogue. `opening` says in words what the schedule is, and comes
    first. With `costs` the operations of the steady state have their cycles.
    """
    schedule, program = planned.schedule, planned.program
    what = f"lowering {schedule.lowering}: {schedule.dialect.words}"
    first, label = f"{opening}\n{what}" if opening else what, f"label: {schedule.label}"
    if program is None:
        return (
            f"{first}; num_stages is {schedule.num_stages}.\n\n{_resources(planned, head_dim, card)}\n\n{label}\n\n"
            "There is no Program to prove or to show; the kernel is verified on the GPU only.\n"
        )
    options = [f"options, {SET} where the file sets them:", *option_lines(schedule)] if schedule.dialect.options else []
    parts = [
        first,
        f"{_heading(program)}\n{_resources(planned, head_dim, card)}",
        "\n".join(options),
        label,
        *program_parts(schedule, program, costs),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def program_parts(schedule: Schedule, program: Program, costs: Costs | None = None) -> list[str]:
    """Returns, as one text each, a Program's producer if it has one, steady state, prologue and epilogue."""
    phases = program.phases
    placed = not schedule.dialect.emitted
    note = f" ({PLACED} of the model: TileLang places it)" if placed else ""
    lines = partial(_lines, program, placed)
    return [
        *([_producer(program)] if program.loads else []),
        "\n".join([f"Steady state, iteration t{note}:", *lines(phases.steady.operations, costs)]),
        _edge("Prologue", phases.prologue, str, lines),
        _edge("Epilogue", phases.epilogue, partial(offset, origin="n"), lines),
    ]


def _heading(program: Program) -> str:
    note = {
        "synchronous": "every product is waited for at once; loads are issued by the threads that compute",
        "asynchronous": "products stay in flight until an operation needs them; a producer issues the loads",
    }[program.model]
    least = f"; the loop runs at least {program.least_blocks} blocks" if program.least_blocks > 1 else ""
    return f"{program.model} model: {note}\nbuffers: {program.rings}{least}"


def _resources(planned: Planned, head_dim: HeadSize, card: Card) -> str:
    """Returns a text on a kernel's tile, and what it takes: threads, shared memory, mbarriers and registers."""
    schedule = planned.schedule
    M, N, table = schedule.block_M, schedule.block_N, schedule.dialect.table
    takes = lowering_of(schedule).resources(planned, head_dim, card)
    static = takes.static_bytes
    before = f"{static:,} that hold the mbarriers + " if static else ""
    team = "a warp" if takes.team == WARP else takes.team
    producer = f"; {takes.producer_threads} more for the producer, of which one warp loads"
    lines = [
        f"tile: {M} {table.rows} x {N} {table.columns}, head_dim {head_dim}",
        f"threads: {schedule.threads} compute, {team} for each {M * takes.team // schedule.threads} rows"
        + (producer if takes.producer_threads else ", and load"),
        f"shared memory: {static + takes.shared_bytes:,} of {card.shared_available(takes.blocks):,} bytes{of_other_card(card)}: {before}"
        + shared_text(schedule, head_dim, takes.rings),
        f"registers: {takes.fragment_registers} of {takes.registers} for fragments: {fragments_text(takes)}",
    ]
    if takes.barriers:
        of = ", ".join(f"{count} of {name}" for name, count in takes.barriers.items())
        lines.insert(3, f"mbarriers: {2 * sum(takes.barriers.values())}, a full and an empty one for each of {of}")
    if takes.producer_threads:
        words = (
            f"{takes.split[0]} for threads that compute, {takes.split[1]} for the producer's" if takes.split else "none"
        )
        given = "by the file" if is_set(schedule, "kernel", "registers") else "by block_M"
        lines.append(f"setmaxnreg: {words}, {given}")
    return "\n".join(lines)


def _producer(program: Program) -> str:
    loads = ", ".join(f"{load}(j)" for load in program.loads)
    rules = "; ".join(
        f"{load}(j) takes a buffer once {load}(j-{program.buffers[load]}) is released" for load in program.loads
    )
    return f"Producer, for j = 0, 1, ...: {loads}\n  {rules}"


def _edge(name: str, iterations: Sequence[Iteration], at: Callable[[int], str], lines: Callable[..., list[str]]) -> str:
    """Returns a text of the prologue or the epilogue, with the operations of each of its iterations."""
    if not iterations:
        return f"{name}: none"
    shown = [f"{name}:"]
    for t, operations in iterations:
        shown += [f" iteration t = {at(t)}", *(f" {line}" for line in lines(operations))]
    return "\n".join(shown)


def _lines(program: Program, placed: bool, operations: Sequence[Operation], costs: Costs | None = None) -> list[str]:
    """Returns a line for each operation; vector statements that follow each other share a line."""
    lines: list[str] = []
    for op in operations:
        # A kernel that is not emitted from its Program is held to its loads and products alone.
        mark = PLACED if placed and op.kind != "issue" else " "
        start = f"{mark} {SHOWN_AS.get(op.kind, op.kind):8} "
        if op.kind == "run" and lines and lines[-1].startswith(start):
            lines[-1] += f", {words(program, op)}"
        else:
            cycles = costs(program, op) if costs else None
            lines.append(start + words(program, op) + (f": {cycles:,.0f} cycles" if cycles is not None else ""))
    return lines


def words(program: Program, op: Operation) -> str:
    """Returns, in words, the statement and the block that an operation acts on, or what else it concerns."""
    if op.kind in ALONE:
        return ALONE[op.kind]
    what = f"{op.statement}({offset(-op.lag)})" if op.statement in program.table.by_name else op.statement
    if op.kind == "wait" and (op.statement in program.table.products or program.counts_loads):
        return f"{what}, {op.outstanding} later in flight"
    if op.statement not in program.table.by_name:
        return what
    if program.table.by_name[op.statement].boundary_only:
        return f"{what} of a boundary block"
    return what + SAID.get(op.kind, "")
