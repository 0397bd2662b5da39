"""`explain` lists the Program, which is what the kernel does as TileLang traced it and as the proof reads it."""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
from explained import Listed, Phase, explained
from mutations import SCHEDULES, shipped
from overlap import overlap
from tiers import sampled
from traced import Emitted, TracedStatement, specialized_phases

from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.loop.table import Table, whole
from tl_attention.schedule.options import SoftmaxOptions
from tl_attention.schedule.schedule import Schedule

SPECIALIZED = {name: s for name, s in shipped().items() if s.lowering == "warp_specialized"}
KEPT = ("best_causal", "fa3_overlap", "short", "softcap_causal")
SOFTMAX = (
    {"row_max": "thread"},
    {"row_max": "chains"},
    {"row_sum": "row"},
    {"rescale_threshold": 8.0},
    {"fused_scale": False},
    {"rescale_threshold": 8.0, "row_max": "thread"},
)


def experiments() -> dict[str, Schedule]:
    """Returns experiments by roles, one of those with the same Program and options that change the statements' code."""
    found: dict[object, tuple[str, Schedule]] = {}
    for path in sorted(SCHEDULES.glob("experiments/**/*.yaml")):
        schedule = load(path)
        if schedule.lowering != "warp_specialized":
            continue
        key = (
            schedule.kernel.q_operand,
            schedule.kernel.p_operand,
            schedule.kernel.output,
            schedule.softmax,
            schedule.split,
        )
        found.setdefault((derive(schedule).phases, *key), (f"{path.parent.stem}/{path.stem}", schedule))
    return dict(found.values())


TRACED = {
    **SPECIALIZED,
    **experiments(),
    **{form: overlap(form) for form in ("source order", "three stages")},
    **{str(options): overlap().model_copy(update={"softmax": SoftmaxOptions(**options)}) for options in SOFTMAX},
}
BOTH_MASKS = [
    *product(SPECIALIZED, (False, True)),
    *((name, "experiments/" not in name) for name in TRACED if name not in SPECIALIZED),
]
# A statement or a product with what it reads and writes; else the operation's kind, and of what.
Token = tuple


def listed(phase: Phase, schedule: Schedule, unmasked: bool = False) -> list[Token]:
    """Returns a phase's operations as a kernel has them; if `unmasked`, without those of boundary blocks alone."""
    table = schedule.table
    rings = {load: table.ring_of(load)[0] for load in table.loads}
    tokens: list[Token] = []
    for op in phase.operations:
        if op.kind == "run" and whole(op.statement) == "cast" and schedule.kernel.p_operand == "shared":
            first, end = table.by_name[op.statement].columns or (0, schedule.block_N)
            tokens.append(("put", f"{schedule.block_N}, {first}, {end}, false"))
        elif op.kind == "run" and not (unmasked and "boundary" in op.words):
            tokens.append(("vector", _access(table, op)))
        elif op.kind == "issue":
            tokens.append(("product", _access(table, op)))
        elif op.kind == "wait" and op.statement in table.products:
            tokens += [("products wait", op.words.split()[0]), ("fence", whole(table.by_name[op.statement].writes[0]))]
        elif op.kind in ("wait", "release"):
            tokens.append((op.kind, rings.get(op.statement, "Q")))
        elif op.kind in ("turn", "pass"):
            tokens.append((op.kind, {"turn": "1 + wg", "pass": "2 - wg"}[op.kind]))
        elif op.kind == "share":
            tokens += [("fence of what is shared", "fence_proxy_async"), ("share", "4 + wg")]
        elif op.kind in ("hold", "resume"):
            tokens += [("hold", text) for text in held(op, schedule)]
    return tokens


def held(op: Listed, schedule: Schedule) -> list[str]:
    """Returns the calls for a hold: a thread has half as many registers as there are columns."""
    if op.kind == "resume":
        return ["resume"]
    first, end = (column // 2 for column in schedule.table.by_name[op.statement].columns or (0, schedule.block_N))
    return [f"hold<{first}, {end}>", f"hold<{first + 4}, {end}>"] if "all" in op.words else [f"hold_last<{end - 1}>"]


def _access(table: Table, op: Listed) -> TracedStatement:
    entry = table.by_name[op.statement]
    kind = "wgmma_gemm" if entry.kind == "product" else "parallel"
    return TracedStatement(kind, frozenset(map(whole, entry.reads)), frozenset(map(whole, entry.writes)))


def merged(tokens: Sequence[Token], shared: set[str]) -> list[Token]:
    """Merges vector parts in a row that write the same buffer; a buffer that is not in `shared` is a part's own."""
    found: list[Token] = []
    reads: set[str] = set()
    for kind, what in tokens:
        if not isinstance(what, TracedStatement):
            found.append((kind, what))
            continue
        # Q in registers is a copy, P in shared memory the cast scores; block 0's product clears what others accumulate
        # into.
        copied = {{"Q_local": "Q_shared", "P_shared": "acc_s_cast"}.get(buffer, buffer) for buffer in what.reads}
        reads |= (copied - what.writes if kind == "product" else copied) & shared
        writes = what.writes & shared
        if writes and found and kind == "vector" and found[-1][::2] == (kind, writes):
            found[-1][1].update(reads)
        elif writes:
            found.append((kind, reads, writes))
        if writes:
            reads = set()
    return found


def in_loop(before: list[Emitted], after: list[Emitted], schedule: Schedule) -> tuple[list[Token], list[Token]]:
    """Cuts prologue and epilogue to the loop's parts: after the wait for Q, and up to the scaling of the output."""
    before = before[before.index(("wait", "Q")) + 1 :]
    if schedule.kernel.q_operand == "registers":
        assert before[0][1].writes == {"Q_local"}
        before = before[1:]
        if schedule.kernel.output != "tma":
            # The TMA loads the next rows over these.
            assert before[:2] == [("fence of what is shared", "fence_proxy_async"), ("release", "Q")]
            before = before[2:]
    kinds = [("denominator" in what.reads, set(what.writes)) if kind == "vector" else kind for kind, what in after]
    behind = kinds.index((True, {"scores_scale"}))
    # An output that goes through Q's rows shares these with the TMA, as P is with products.
    of_output = ("vector", "fence", "fence of what is shared", "share")
    rest = [token for token in after[behind:] if token[0] not in of_output]
    assert rest == ([("release", "Q")] if schedule.kernel.output == "tma" else [])
    return before, after[:behind]


@pytest.mark.parametrize("name,causal", sampled(BOTH_MASKS, [(name, True) for name in KEPT]))
def test_the_traced_kernel_does_what_is_listed(name, causal):
    """Every operation of every phase is compared in order, statements with what they read and write."""
    schedule = TRACED[name]
    kernel = lowering_of(schedule).prim_func(Planned(schedule), Variant(128, "float16", CAUSAL if causal else FULL))
    before, loops, after = specialized_phases(kernel)
    before, after = in_loop(before, after, schedule)
    assert len(loops) == 2 or not causal
    phases = explained(schedule)
    shared = {whole(buffer) for s in schedule.table.statements for buffer in s.reads + s.writes}
    assert merged(before, shared) == merged(listed(phases["Prologue"], schedule), shared)
    for loop, unmasked in zip(loops[::-1], (True, False)):
        assert merged(loop, shared) == merged(listed(phases["Steady state"], schedule, unmasked), shared)
    assert merged(after, shared) == merged(listed(phases["Epilogue"], schedule), shared)


def unrolled_list(phases: dict[str, Phase], blocks: int) -> Iterator[tuple[Listed, int]]:
    """Yields (operation, its block) of the listed phases for a loop over so many blocks."""
    prologue, epilogue = phases["Prologue"], phases["Epilogue"]
    start = int(prologue.at[-1]) + 1 if prologue.at else 0
    ends = [int(at[1:] or 0) for at in epilogue.at]
    iterations = [(int(at), ops) for at, ops in zip(prologue.at, prologue.iterations)]
    iterations += [(t, phases["Steady state"].operations) for t in range(start, blocks + (ends[0] if ends else 0))]
    iterations += [(blocks + end, ops) for end, ops in zip(ends, epilogue.iterations)]
    for t, operations in iterations:
        for op in operations:
            yield op, t + op.distance


@pytest.mark.parametrize("name", [name for name, s in shipped().items() if s.lowering != "mma_sync"])
def test_the_list_is_the_program(name):
    """Every operation of a statement is listed with its block; the test above has turns, holds and the release of Q."""
    program, phases = derive(shipped()[name]), explained(shipped()[name])
    kinds = ("run", "issue", "wait", "release", "acquire")
    for blocks in (program.least_blocks, program.least_blocks + 4):
        found = [(op.kind, op.statement, block) for op, block in unrolled_list(phases, blocks)]
        steps = [(step.op.kind, step.op.statement, step.block) for step in program.phases.steps(blocks)]
        found, steps = ([op for op in listed if op[0] in kinds and op[1] != "load_q"] for listed in (found, steps))
        assert found == steps
