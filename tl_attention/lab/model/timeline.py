"""A predicted timeline has the lines of a simulated thread block's roles, in the form of a measured one.

So every view of a measured timeline shows a predicted one too. Machine code does not say which statements it computes:
what a role does between waits and products has the names of the statements that the Program has there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import groupby

from tl_attention.codeproof.mark_places import WRITES
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.model.grid import Grid
from tl_attention.lab.model.machine import Machine
from tl_attention.lab.model.prediction import compiled, predict_code
from tl_attention.lab.model.roles import run
from tl_attention.lab.model.steps import columns
from tl_attention.lab.model.warp import COPIES, THREADS, Account
from tl_attention.lab.trace.about import About, Predicted
from tl_attention.lab.trace.flows import FULL
from tl_attention.lab.trace.timeline import Line, Timeline, What
from tl_attention.program.events import NAMED, Q
from tl_attention.program.program import Operation, Program
from tl_attention.schedule.loop.table import whole

# Tiles that are simulated, and the most KV blocks of each: a picture shows two from the middle of one.
TILES, MOST_BLOCKS = 2, 128
# Masks hide scores in few blocks.
NAMED_STATEMENTS = tuple(name for name in WRITES if name != "mask")
# What a mark says, and the barriers at which the role arrives before its next mark.
Mark = tuple[What, tuple[str, ...]]


def predicted(candidate: Candidate, machine: Machine) -> Timeline:
    """Returns the timeline of the thread blocks of one SM that runs some tiles of a candidate's kernel.

    Raises InputError where nothing can be predicted, and as compile_kernel does.
    """
    code, per_sm = compiled(candidate, machine)
    prediction, grid = predict_code(candidate, machine, code, per_sm), Grid.of(candidate, per_sm)
    planned = candidate.ours
    assert planned.program is not None
    lengths = [grid.usual_tile(MOST_BLOCKS)] * (TILES if code.again else 1)
    quarter = run(planned, code, lengths, machine, candidate.shape.head_size, per_sm)
    steps = (step.op for blocks, _ in lengths for step in planned.program.phases.steps(blocks))
    acts = [act for op in steps if (act := shown_as(planned.program, op))]
    word = "consumer" if quarter.producers else "warpgroup"
    accounts = {(block, f"{word} {warp}"): account for (block, warp), account in quarter.accounts.items()}
    accounts |= {(block, "producer"): account for block, account in quarter.producers.items()}
    roles = [*dict.fromkeys(role for _, role in accounts)]
    noted = [
        (block, roles.index(role), _marks(account, acts))
        for (block, role), account in sorted(accounts.items(), key=lambda item: item[0][0])
    ]
    known = [*dict.fromkeys(mark for _, _, marks in noted for _, mark in marks)]
    about = About(
        name=candidate.name,
        label=candidate.label,
        shape=str(candidate.shape),
        device=f"{machine.device}, predicted",
        predicted=Predicted(machine.title, prediction.ms, lengths[0][0]),
        product_cycles={"both": columns(code.steady) / machine.wgmma_columns},
        blocks_of_sm=per_sm,
    )
    lines = tuple(
        Line(block, role, 0, 0, 0, tuple(round(at) for at, _ in marks), tuple(known.index(mark) for _, mark in marks))
        for block, role, marks in noted
    )
    whats, arrives = zip(*known)
    return Timeline(about, tuple(roles), prediction.clock_mhz, whats, arrives, lines)


def shown_as(program: Program, op: Operation) -> tuple[str, str] | None:
    """Returns the kind and name that a consumer's operation has in a timeline, None for one that takes no time."""
    table = program.table
    if op.kind == "run" and whole(op.statement) in NAMED_STATEMENTS:
        return "vector", whole(op.statement)
    if op.statement in table.products and op.kind in ("issue", "wait"):
        return op.kind, op.statement
    if op.kind == "wait":
        ring = table.ring_of(op.statement).removesuffix("_shared") if op.statement in table.by_name else Q
        return "wait", COPIES if program.counts_loads else f"{ring}{FULL}"
    if op.kind in ("turn", "share", "sync"):
        return "wait", THREADS if op.kind == "sync" else NAMED
    return None


def _computed(account: Account, acts: Iterable[tuple[str, str]]) -> dict[tuple[str, str], deque[str]]:
    """Returns the statements behind each wait and issue of an account, by kind and name and in order."""
    seen = {(note.kind, note.name) for note in account.notes}
    found: defaultdict[tuple[str, str], deque[str]] = defaultdict(deque)
    shown = (act for act in acts if act[0] == "vector" or act in seen)
    last = None
    for is_vector, group in groupby(shown, lambda act: act[0] == "vector"):
        together = [*group]
        if is_vector and last:
            names = {name for _, name in together}
            found[last][-1] = "+".join(name for name in NAMED_STATEMENTS if name in names)
        elif not is_vector:
            for last in together:
                found[last].append("")
    return found


def _marks(account: Account, acts: Iterable[tuple[str, str]]) -> list[tuple[float, Mark]]:
    """Returns a role's marks with their times; each has the arrivals until the next one."""
    computed, last = _computed(account, acts), ("", "")
    found: list[tuple[float, What, list[str]]] = []
    for at, kind, name in sorted(account.notes, key=lambda note: note.at):
        if kind == "arrive":
            if found and name not in found[-1][2]:
                found[-1][2].append(name)
            continue
        if kind == "vector":
            name = computed[last].popleft() if computed[last] else ""
            if found and found[-1][1].kind == "tile":
                name = "clear"
            elif not name:
                # Little is computed there: the time counts to what was before it.
                continue
        else:
            last = kind, name
        found.append((at, What(kind, name), []))
    # Behind the last tile nothing begins: its mark only ends what is before it.
    while found[-1][1].kind != "tile":
        found.pop()
    found[-1] = (found[-1][0], What("end", ""), [])
    return [(at, (what, tuple(arrives))) for at, what, arrives in found]
