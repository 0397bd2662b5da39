"""A Program as text: who does what, in which iteration, and who waits for whom."""

from __future__ import annotations

from typing import Iterator

from tl_attention.derivation import derive
from tl_attention.option_label import changed_options
from tl_attention.program import Model, Phases, Program, Step, offset, phases
from tl_attention.schedule import Schedule
from tl_attention.statements import BY_NAME, PRODUCTS, READER


def explain(schedule: Schedule, model: Model | None = None) -> str:
    """Prologue, steady state and epilogue of the schedule's Program, in the lowering's own model by default."""
    if not schedule.has_program:
        return (
            f"{schedule.label}\n\nlowering inferred: the compiler decides order, stages and waits (T.Pipelined with "
            f"num_stages={schedule.num_stages}).\nThere is no Program to prove or to show; the kernel is verified on "
            "the GPU only.\n"
        )
    program = derive(schedule, model)
    view = phases(program)
    parts = [
        schedule.label,
        "\n".join((_heading(program), *(f"option: {words}" for words in _options(schedule)))),
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


def _options(schedule: Schedule) -> Iterator[str]:
    """What the schedule chooses otherwise than by default. The numbers of buffers stand in the heading."""
    for path, value in changed_options(schedule):
        key, name = path.split(".")
        if path in WORDS:
            yield WORDS[path].format(value)
        elif isinstance(value, str) and f"{path}={value}" in WORDS:
            yield WORDS[f"{path}={value}"]
        elif key == "split":
            yield f"{name} in chunks of {' + '.join(map(str, value))} columns"
        elif key == "wait_before":
            yield f"{name} is waited for before {value}, no later"
        elif key == "release_before":
            yield f"{BY_NAME[name].writes[0]} is released before {value}, no earlier"
        elif path not in ("kernel.k_stages", "kernel.v_stages"):
            yield f"{path} {value}"


WORDS = {
    "kernel.tile_scheduler=one_tile": "one thread block per row tile, not persistent",
    "kernel.tile_scheduler=dynamic": "persistent, the next row tile comes from a counter in global memory",
    "kernel.tile_order=tapered": "row tiles of the last heads from the longest to the shortest, to end with these",
    "kernel.tile_order=sections": "row tiles in sections of heads whose K and V fit in L2, the longest tiles first",
    "kernel.cluster": "no cluster, every thread block loads its own K and V",
    "kernel.ping_pong": "ping-pong, the two warpgroups take turns to issue their products",
    "kernel.q_operand=registers": "MMA0 reads Q from registers",
    "kernel.output=direct": "each thread stores the 4 bytes of output that it holds",
    "kernel.output=tma": "the output leaves by TMA, through the rows of Q_shared",
    "kernel.waits=exact": "a product's wait stands right behind the chunk of exponentials before it in the order",
    "kernel.waits=free": "ptxas may move a product's wait before exponentials that come first in the order",
    "kernel.registers": "setmaxnreg {0[0]} for threads that compute, {0[1]} for the producer's",
    "softmax.fused_scale": "acc_s is scaled before the exponent, not by its FMA",
    "softmax.row_max=thread": "row_max goes on from the row's maximum so far in every thread",
    "softmax.row_sum=row": "row_sum reduces over the row in every block, not once after the loop",
    "softmax.rescale_threshold": "a row keeps its maximum, and its acc_o, until it would grow by more than 2^{0:g}",
    "softmax.exp2_polynomial": (
        "1 in {0.every} exponentials of a thread, from its exponential {0.first} on, by a polynomial of degree "
        "{0.degree} on the FMA units, the others by MUFU.EX2"
    ),
}


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
