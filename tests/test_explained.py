"""What `explain` lists is what the kernel does, operation by operation: as TileLang traced it, and as generated."""

import re
from collections.abc import Iterator, Sequence
from itertools import product

import golden
import pytest
from code_events import block_events, role_events
from explained import BLOCK_LOOP, Listed, Phase, explained
from mutations import SCHEDULES, fitting_head_dim, shipped
from once import Given, lowered
from overlap import overlap
from tiers import sampled
from traced import Emitted, TracedStatement, specialized_phases

from tl_attention.files.schedule_file import load
from tl_attention.loop.table import Table, whole
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.program.program import CONSUMER
from tl_attention.proof.events import Process
from tl_attention.schedule.options import SoftmaxOptions
from tl_attention.schedule.schedule import Schedule

SPECIALIZED = {name: s for name, s in shipped().items() if s.lowering == "warp_specialized"}
# Of these the tests of both tiers have the generated code.
CODE = {name: Given(s, Variant(fitting_head_dim(name), "float16", CAUSAL)) for name, s in SPECIALIZED.items()}
KEPT = [name for name, kernel in CODE.items() if (kernel.schedule, kernel.variant) in golden.names()]
PIPELINED = [name for name, s in shipped().items() if s.lowering == "pipelined"]
SOFTMAX = (
    {"row_max": "thread"},
    {"row_max": "chains"},
    {"row_sum": "row"},
    {"rescale_threshold": 8.0},
    {"fused_scale": False},
    {"rescale_threshold": 8.0, "row_max": "thread"},
)


def experiments() -> dict[str, Schedule]:
    """Returns experiments, one of those with the same Program and the same options that change the statements' code."""
    found: dict[object, tuple[str, Schedule]] = {}
    for path in sorted(SCHEDULES.glob("experiments/**/*.yaml")):
        schedule = load(path)
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
    """Returns a phase's operations as a kernel has them; if `unmasked`, without those that only a boundary block needs."""
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
        # Q in registers is a copy, P in shared memory the cast scores; the product of block 0 clears what the others accumulate into.
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
    """Cuts prologue and epilogue to the loop's parts: behind the wait for Q, and up to the factors that scale the output."""
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


# What a line of generated code does, but for the vector statements; a product is known by its descriptors.
LINES = {
    "wait": r"^(\w)_full\[.*\]\.wait\(",
    "release": r"^(\w)_empty\[.*\]\.arrive\(",
    "product": r"tl::initialize_wgmma_descriptor<.*\*\)([KV])_shared\)\[",
    "products wait": r"^tl::wait_wgmma<(\d+)>",
    "turn": r"^tl::__sync_thread_partial\(\((wg\w* \+ 1)\), 256\)",
    "pass": r"^tl::__named_barrier_arrive\(\((2 - wg\w*)\), 256\)",
    "hold": r"^tl_attention_(hold<\d+, \d+>|hold_last<\d+>|resume)\(",
}


def generated(text: str) -> list[Token]:
    lines = [line.strip() for line in text.splitlines()]
    found = [(kind, re.search(pattern, line)) for line in lines for kind, pattern in LINES.items()]
    # The wait for a turn and the turn given name the warpgroup as it is called there.
    return [(kind, "" if kind in ("turn", "pass") else match[1]) for kind, match in found if match]


def in_code(phase: Phase, schedule: Schedule) -> list[Token]:
    """Returns the operations of a phase that `generated` reads."""
    tokens: list[Token] = []
    for kind, what in listed(phase, schedule):
        if kind == "product":
            tokens.append((kind, "K" if "K_shared" in what.reads else "V"))
        elif kind not in ("vector", "fence"):
            tokens.append((kind, "" if kind in ("turn", "pass") else what))
    return tokens


@pytest.mark.parametrize("name", sampled(SPECIALIZED, KEPT))
def test_the_generated_code_does_what_is_listed(name):
    """Loads, waits, products, releases, turns, holds and Q's release agree in order, before, in and after the loops."""
    schedule = SPECIALIZED[name]
    source = lowered(CODE[name]).source
    phases = explained(schedule)
    loops = list(BLOCK_LOOP.finditer(source))
    before = generated(source[: loops[0].start()])
    assert before[before.index(("wait", "Q")) + 1 :] == in_code(phases["Prologue"], schedule)
    assert len(loops) == 2
    for loop in loops:
        assert generated(loop[0]) == in_code(phases["Steady state"], schedule)
    assert generated(source[loops[1].end() :]) == in_code(phases["Epilogue"], schedule)


def unrolled_list(phases: dict[str, Phase], blocks: int, kinds: set[str]) -> Iterator[tuple[Listed, int]]:
    """Yields (operation, its block) of the listed phases for a loop over so many blocks."""
    prologue, epilogue = phases["Prologue"], phases["Epilogue"]
    start = int(prologue.at[-1]) + 1 if prologue.at else 0
    ends = [int(at[1:] or 0) for at in epilogue.at]
    iterations = [(int(at), ops) for at, ops in zip(prologue.at, prologue.iterations)]
    iterations += [(t, phases["Steady state"].operations) for t in range(start, blocks + (ends[0] if ends else 0))]
    iterations += [(blocks + end, ops) for end, ops in zip(ends, epilogue.iterations)]
    for t, operations in iterations:
        for op in operations:
            if op.kind in kinds:
                yield op, t + op.distance


@pytest.mark.parametrize("name", sampled(SPECIALIZED, KEPT))
def test_the_generated_code_works_on_the_blocks_that_are_listed(name):
    """Every wait, release and product of the rings is compared by its slot and phase."""
    schedule = SPECIALIZED[name]
    program, table = derive(schedule), schedule.table
    code = lowered(CODE[name])
    rows = schedule.block_M * schedule.kernel.cluster
    for blocks in (program.least_blocks, program.least_blocks + 5):
        events = role_events(schedule, code, Sizes(1, 1, rows, blocks * schedule.block_N))
        found = [
            (event.kind, event.name[0], event.index, event.value * (event.kind == "wait"))
            for event in events[Process(0, 0, 4)]
            if event.kind != "init" and event.name[:1] in ("K", "V")
        ]
        expected = []
        for op, block in unrolled_list(explained(schedule), blocks, {"wait", "release", "issue"}):
            [filled] = table.loads_of(op.statement) if op.kind == "issue" else [op.statement]
            if filled in table.loads:
                depth = program.buffers[filled]
                kind = {"wait": "wait", "release": "arrive", "issue": "product"}[op.kind]
                parity = block // depth % 2 if op.kind == "wait" else 0
                expected.append((kind, table.ring_of(filled)[0], block % depth, parity))
        assert found == expected


@pytest.mark.parametrize("name", PIPELINED)
def test_loads_and_products_of_a_pipelined_schedule_are_listed_in_the_programs_order(name):
    """The proof compares such a kernel's generated code with that order; the rest of the list is marked as the model's."""
    schedule = shipped()[name]
    program, phases = derive(schedule), explained(schedule)
    for blocks in (program.least_blocks, program.least_blocks + 4):
        found = [(op.statement, block) for op, block in unrolled_list(phases, blocks, {"issue"})]
        steps = program.roles(blocks)[CONSUMER]
        assert found == [(step.op.statement, step.block) for step in steps if step.op.kind == "issue"]


@pytest.mark.parametrize(
    "name", sampled(["seed", "prefetch", "prefetch_late", "three_stages"], ["seed", "prefetch_late"])
)
def test_the_generated_pipelined_code_loads_and_multiplies_as_listed(name):
    schedule = shipped()[name]
    phases, table = explained(schedule), schedule.table
    code = lowered(Given(schedule, Variant(128, "float16")))
    for blocks in (derive(schedule).least_blocks, 8):
        run = block_events(schedule, code, Sizes(1, 1, 1, blocks * schedule.block_N))
        found = [(event.kind, event.name) for event in run if event.kind in ("load", "product")]
        names = {load: ("load", table.ring_of(load)[0]) for load in table.loads}
        names |= {reader: ("product", table.ring_of(load)[0]) for load in names for reader in table.readers[load]}
        assert found == [names[op.statement] for op, _ in unrolled_list(phases, blocks, {"issue"})]
