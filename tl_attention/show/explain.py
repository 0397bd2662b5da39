"""A schedule as text: what it takes of the SM, its options, and who does what, in which iteration, after whom."""

from __future__ import annotations

from tl_attention.hardware.device import HOPPER
from tl_attention.hardware.warpgroup import ROWS, WARPGROUP
from tl_attention.loop.statements import BY_NAME, PRODUCTS, READER
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.shape import DTYPE_BYTES
from tl_attention.program.derivation import derive
from tl_attention.program.program import Phases, Program, Step, offset, phases
from tl_attention.schedule.dialect import Model
from tl_attention.schedule.schedule import Schedule
from tl_attention.show.option_words import SET, is_set, option_lines


def explain(schedule: Schedule, model: Model | None = None, head_dim: int = 128) -> str:
    """What the schedule takes of the SM, its options, and its Program, in the lowering's own model by default.

    The Program comes as prologue, steady state and epilogue. Raises ScheduleRefused where none can be derived.
    """
    if not schedule.has_program:
        return (
            f"{schedule.label}\n\n{_resources(schedule, head_dim)}\n\n"
            f"lowering {schedule.lowering}: {schedule.dialect.words}; num_stages is {schedule.num_stages}.\n"
            "There is no Program to prove or to show; the kernel is verified on the GPU only.\n"
        )
    program = derive(schedule, model)
    view = phases(program)
    parts = [
        schedule.label,
        f"{_heading(program)}\n{_resources(schedule, head_dim)}",
        _options(schedule),
        _producer(program),
        "Steady state, iteration t:\n" + _steady(view),
        _edge("Prologue", view, first=True),
        _edge("Epilogue", view, first=False),
    ]
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _heading(program: Program) -> str:
    rings = ", ".join(f"{BY_NAME[load].writes[0]} {count}" for load, count in program.buffers.items())
    note = {
        "synchronous": "every product is waited for at once; loads are issued by the threads that compute",
        "asynchronous": "products stay in flight until an operation needs them; a producer issues the loads",
    }[program.model]
    least = f"; the loop runs at least {program.least_blocks} blocks" if program.least_blocks > 1 else ""
    return f"{program.model} model: {note}\nbuffers: {rings}{least}"


def _resources(schedule: Schedule, head_dim: int) -> str:
    """Tile, threads, shared memory, mbarriers and registers, each with what there is of it."""
    M, N = schedule.block_M, schedule.block_N
    takes = lowering_of(schedule).resources(schedule, head_dim)
    k, v = takes.rings
    static = takes.static_bytes
    before = f"{static:,} that hold the mbarriers + " if static else ""
    producer = f"; {takes.producer_threads} more for the producer, of which one warp loads"
    lines = [
        f"tile: {M} queries x {N} keys, head_dim {head_dim}",
        f"threads: {schedule.threads} compute, {WARPGROUP} for each {ROWS} rows"
        + (producer if takes.producer_threads else ", and load"),
        f"shared memory: {static + takes.shared_bytes:,} of {HOPPER.shared_bytes_per_block:,} bytes: {before}"
        f"(block_M {M} + ({k} + {v} buffers) * block_N {N}) * head_dim {head_dim} * {DTYPE_BYTES}",
        f"registers: {takes.fragment_registers} of {takes.registers} for fragments: "
        + ", ".join(f"{name} {count}" for name, count in takes.fragments.items()),
    ]
    if takes.barriers:
        of = ", ".join(f"{count} of {name}" for name, count in takes.barriers.items())
        lines.insert(3, f"mbarriers: {2 * sum(takes.barriers.values())}, a full and a free one for each of {of}")
    if takes.producer_threads:
        words = (
            f"{takes.split[0]} for threads that compute, {takes.split[1]} for the producer's" if takes.split else "none"
        )
        given = "by the file" if is_set(schedule, "kernel", "registers") else "by block_M"
        lines.append(f"setmaxnreg: {words}, {given}")
    return "\n".join(lines)


def _options(schedule: Schedule) -> str:
    """Those in force, of a lowering that takes any."""
    if not schedule.dialect.options:
        return ""
    return "\n".join([f"options, {SET} where the file sets them:", *option_lines(schedule)])


def _producer(program: Program) -> str:
    if not program.producer:
        return ""
    loads = ", ".join(f"{op.statement}(j)" for op in program.producer if op.kind == "issue")
    rules = "; ".join(
        f"{load}(j) takes a buffer once {READER[load]}(j-{program.buffers[load]}) has released it"
        for load in dict.fromkeys(op.statement for op in program.producer)
    )
    return f"Producer, for j = 0, 1, ...: {loads}\n  {rules}"


def _lines(steps: tuple[Step, ...], time: int | None) -> list[str]:
    """One line per step; vector statements that follow each other share a line."""
    lines: list[str] = []
    for step in steps:
        block = f"{step.block}" if time is None else offset(step.block - time)
        what = f"{step.op.statement}({block})"
        if step.op.kind == "run":
            if lines and lines[-1].startswith("  run "):
                lines[-1] += f", {what}"
            else:
                lines.append(f"  run      {what}")
        elif step.op.kind == "wait" and step.op.statement in PRODUCTS:
            lines.append(f"  wait     {what}, {step.outstanding} later in flight")
        else:
            lines.append(f"  {step.op.kind:8} {what}")
    return lines


def _steady(view: Phases) -> str:
    time, steps = view.steady
    return "\n".join(_lines(steps, time))


def _edge(name: str, view: Phases, *, first: bool) -> str:
    iterations = view.prologue if first else view.epilogue
    if not iterations:
        return f"{name}: none"
    parts = [f"{name}:"]
    for time, steps in iterations:
        at = f"t = {time}" if first else f"t = n{time - view.blocks:+d}".replace("+0", "")
        parts.append(f" iteration {at}")
        parts += [f" {line}" for line in _lines(steps, time)]
    return "\n".join(parts)
