"""A Program as text: who does what, in which iteration, and who waits for whom."""

from __future__ import annotations

from tl_attention.derivation import derive
from tl_attention.program import Phases, Program, Step, phases
from tl_attention.schedule import Schedule
from tl_attention.statements import BY_NAME, PRODUCTS, READER


def explain(schedule: Schedule, model: str = "synchronous") -> str:
    """Prologue, steady state and epilogue of the schedule's Program."""
    if not schedule.has_program:
        return (
            f"{schedule.label}\n\nlowering inferred: the compiler decides order, stages and waits (T.Pipelined with "
            f"num_stages={schedule.num_stages}).\nThere is no Program to prove or to show; the kernel is verified on "
            "the GPU only.\n"
        )
    program = derive(schedule, model)  # type: ignore[arg-type]
    view = phases(program)
    parts = [
        schedule.label,
        _heading(program),
        "Steady state, iteration t:\n" + _steady(view),
        _edge("Prologue", view, first=True),
        _edge("Epilogue", view, first=False),
    ]
    if program.producer:
        loads = ", ".join(f"{op.statement}(j)" for op in program.producer if op.kind == "issue")
        rules = "; ".join(
            f"{load}(j) takes a buffer once {READER[load]}(j-{program.buffers[load]}) has released it"
            for load in dict.fromkeys(op.statement for op in program.producer)
        )
        parts.insert(2, f"Producer, for j = 0, 1, ...: {loads}\n  {rules}\n")
    return "\n\n".join(part.rstrip() for part in parts if part) + "\n"


def _heading(program: Program) -> str:
    rings = ", ".join(f"{BY_NAME[load].writes[0]} {count}" for load, count in program.buffers.items())
    note = {
        "synchronous": "every product is waited for at once; loads are issued by the threads that compute",
        "asynchronous": "products stay in flight until an operation needs them; a producer issues the loads",
    }[program.model]
    least = f"; the loop runs at least {program.least_blocks} blocks" if program.least_blocks > 1 else ""
    return f"{program.model} model: {note}\nbuffers: {rings}{least}"


def _lines(steps: tuple[Step, ...], time: int | None) -> list[str]:
    """One line per step; vector statements that follow each other share a line."""
    lines: list[str] = []
    for step in steps:
        block = f"{step.block}" if time is None else _relative(step.block - time)
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


def _relative(distance: int) -> str:
    return "t" if distance == 0 else f"t{distance:+d}"


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


