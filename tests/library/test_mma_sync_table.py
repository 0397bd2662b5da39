"""mma_sync's schedules differ in one idea each; tests check their statements, fragments, waits and barriers."""

import difflib
from itertools import combinations

import pytest
from mma_sync_schedules import EAGER, FAMILY, FILES, OF_OTHER_CODE, SHIPPED, changed, head_dim
from mutations import SCHEDULES
from once import Given, lowered
from tiers import exhaustive

from tl_attention.compiler.compile import fingerprint
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.mma_sync.resources import Chunk, fragments, schedule_values
from tl_attention.lab.show.explain import explain
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.legality import check
from tl_attention.program.planned import Planned
from tl_attention.program.program import Operation
from tl_attention.schedule.loop.table import whole
from tl_attention.schedule.schedule import Schedule

FRAGMENTS = ("frag_q", "frag_k", "frag_v")


def test_a_schedule_places_the_loads_of_fragments_beside_the_statements_of_the_source():
    whole_names = dict.fromkeys(map(whole, EAGER.statements))
    assert len(whole_names) == 18 and list(whole_names)[-3:] == list(FRAGMENTS)
    assert {name: sum(whole(s) == name for s in EAGER.statements) for name in (*FRAGMENTS, "mma0", "mma1", "exp")} == {
        "frag_q": 8,
        "frag_k": 8,
        "frag_v": 4,
        "mma0": 8,
        "mma1": 4,
        "exp": 1,
    }


def test_products_read_fragments_and_these_read_what_is_copied():
    of = EAGER.table.by_name
    assert of["frag_k.3"].reads == ("K_shared",) and of["frag_k.3"].writes == ("K_local[0]",)
    assert of["frag_v.1"].reads == ("V_shared",) and of["frag_v.1"].writes == ("V_local[0]",)
    assert of["mma0.0"].reads == ("Q_local[0]", "K_local[0]") and of["mma0.0"].writes == ("acc_s",)
    assert of["mma0.1"].reads == ("Q_local[0]", "K_local[0]", "acc_s")
    # Of acc_s_cast the keys of its step.
    assert of["mma1.2"].reads == ("acc_s_cast[32:48]", "V_local[0]", "acc_o")
    assert of["frag_k.3"].columns == of["mma0.3"].columns == (48, 64)


def test_source_order_uses_up_each_chunk_before_the_next():
    names = EAGER.table.names
    assert names[1:7] == ("frag_q.0", "frag_k.0", "mma0.0", "frag_q.1", "frag_k.1", "mma0.1")
    assert names[-4:] == ("frag_v.2", "mma1.2", "frag_v.3", "mma1.3")
    assert names.index("mma0.7") < names.index("mask") < names.index("row_max")


@pytest.mark.parametrize(
    "name,q,k,v", [("mma_sync/eager", 1, 1, 1), ("mma_sync/fragments", 2, 2, 2), ("mma_sync/whole_tile", 1, 8, 1)]
)
def test_the_order_says_how_many_chunks_there_is_room_for(name, q, k, v):
    schedule = SHIPPED[name]
    assert schedule.table.slots == {"Q_local": q, "K_local": k, "V_local": v}
    assert fragments(schedule)[1:] == (q, k, v)
    assert schedule.table.by_name["frag_k.3"].writes == (f"K_local[{3 % k}]",)
    assert fragments(schedule).chunks["mma0.3"] == Chunk(3, 1, q=3 % q, k=3 % k, v=0)


def test_a_chunk_of_the_next_block_before_this_one_is_used_up_has_no_room_at_all():
    group = [["load_k"], ["frag_k.0"], [name for name in EAGER.group[1] if name != "frag_k.0"], *EAGER.group[2:]]
    keys = {"group": group, "wait_before": {"load_k": None, "load_v": None}, "order": (0, 1, 3, 4, 2, 5)}
    early = changed(**keys, stage=(0, 0, 1, 1, 1, 1))
    assert early.table.slots == {"Q_local": 1, "K_local": 8, "V_local": 1}
    with pytest.raises(
        ScheduleRefused, match=r"^frag_k\.0\(t\) overwrites K_local\[0\] before mma0\.0\(t-1\), emitted later,"
    ):
        check(derive(early))


def test_wide_chunks_take_the_room_of_the_widest():
    wide = Schedule(**EAGER.model_dump() | {"split": {"mma0": (32, 96), "mma1": (16, 48)}, "group": _two_chunks()})
    assert wide.table.slots == {"Q_local": 1, "K_local": 1, "V_local": 1}
    assert fragments(wide)[1:] == (6, 6, 3)
    assert fragments(wide).chunks["frag_k.1"] == Chunk(2, 6, q=0, k=0, v=0)
    assert fragments(wide).chunks["mma1.1"] == Chunk(1, 3)


def _two_chunks() -> list[list[str]]:
    multiplied = [name for n in range(2) for name in (f"frag_k.{n}", f"frag_q.{n}", f"mma0.{n}")]
    return [
        ["load_k"],
        ["mask", *multiplied],
        [*EAGER.group[2]],
        ["load_v"],
        ["frag_v.0", "mma1.0", "frag_v.1", "mma1.1"],
    ]


def test_a_product_that_is_whole_has_all_fragments():
    group = [["load_k"], ["mask", "frag_q", "frag_k", "mma0"], [*EAGER.group[2]], ["load_v"], ["frag_v", "mma1"]]
    unsplit = Schedule(**EAGER.model_dump() | {"split": {}, "group": group})
    assert unsplit.table.by_name["mma0"].reads == ("Q_local[0]", "K_local[0]")
    assert fragments(unsplit) == (
        {name: Chunk() for name in ("frag_q", "frag_k", "mma0", "frag_v", "mma1")},
        *[None] * 3,
    )


def test_q_in_registers_is_loaded_by_no_statement():
    kept = SHIPPED["mma_sync_small"]
    assert not [name for name in kept.statements if whole(name) == "frag_q"]
    assert "Q_local" in kept.table.inputs and "Q_local" not in kept.table.slots
    assert kept.table.by_name["mma0.5"].reads[:2] == ("Q_local", "K_local[0]")
    assert fragments(kept).q_steps is None and fragments(kept).chunks["mma0.5"] == Chunk(5, 1, q=5, k=0)


def test_the_kernel_is_told_how_many_buffers_each_ring_has():
    stages = {
        name: schedule_values(Planned(SHIPPED[f"mma_sync/{name}"]))["kernel"]
        for name in ("eager", "double_k", "double_both")
    }
    assert {name: (kernel.k_stages, kernel.v_stages) for name, kernel in stages.items()} == {
        "eager": (1, 1),
        "double_k": (2, 1),
        "double_both": (2, 2),
    }


def test_labels_say_chunks_of_fragments_and_read_back():
    for schedule in SHIPPED.values():
        assert Schedule.from_label(schedule.label) == schedule
    assert "_1+16.0+15.0+2.0+" in EAGER.label and "_17.0+14.0+" in EAGER.label
    assert changed(kernel={"swizzle": False}).label.partition("~")[2].startswith("kernel.swizzle=off~")


# What the threads do for copies in an iteration. Both loads are behind a barrier that is needed anyhow: two a block.
TWO_BARRIERS = ["wait load_k, 0", "sync", "issue load_v", "wait load_v, 0", "sync", "issue load_k"]
STEADY = {
    **dict.fromkeys(SHIPPED, TWO_BARRIERS),
    "mma_sync/plain": ["issue load_k", "wait load_k, 0", "sync", "issue load_v", "wait load_v, 0", "sync"],
    # With K in two buffers it is copied while V is still on its way; with V in two the wait leaves both in flight.
    "mma_sync/double_k": ["wait load_k, 0", "sync", "issue load_v", "issue load_k", "wait load_v, 1", "sync"],
    "mma_sync/double_both": ["wait load_k, 1", "issue load_k", "sync", "issue load_v", "wait load_v, 2", "sync"],
}


def told(operations: tuple[Operation, ...]) -> list[str]:
    """Says waits, barriers and copies in words."""
    words = {"wait": "wait {0.statement}, {0.outstanding}", "sync": "sync", "issue": "issue {0.statement}"}
    return [words[op.kind].format(op) for op in operations if op.kind in words]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_steady_state_has_these_waits_and_barriers(name):
    assert told(derive(SHIPPED[name]).phases.steady.operations) == STEADY[name]


def test_nothing_else_of_the_model_is_left():
    for schedule in SHIPPED.values():
        phases = derive(schedule).phases
        for _, operations in (*phases.prologue, phases.steady, *phases.epilogue):
            assert {op.kind for op in operations} <= {"wait", "sync", "issue", "run", "keep"}


def test_q_is_waited_for_with_the_first_block_or_by_itself_where_it_stays_in_registers():
    def q(name: str) -> list[list[str]]:
        return [
            [op.kind for op in ops if op.statement in ("load_q", "threads")]
            for _, ops in derive(SHIPPED[name]).phases.prologue
        ]

    assert q("mma_sync") == [[]] and q("mma_sync_small") == [[], ["wait", "sync", "keep"]]
    wait = derive(SHIPPED["mma_sync_small"]).phases.prologue[1].operations[0]
    # K's first block is behind it, and stays in flight.
    assert wait == Operation("wait", "load_q", 0, outstanding=1)


def test_q_that_is_read_before_any_block_has_a_wait_of_its_own():
    group = [name for name in SHIPPED["mma_sync/plain"].group[1] if name != "frag_q.0"]
    groups = [["frag_q.0"], *SHIPPED["mma_sync/plain"].group[:1], group, *SHIPPED["mma_sync/plain"].group[2:]]
    first = changed(SHIPPED["mma_sync/plain"], group=groups, order=(0, 1, 2, 4, 3, 5), stage=(0,) * 6)
    prologue = derive(first).phases.prologue
    assert next(op for _, ops in prologue for op in ops) == Operation("wait", "load_q", 0)


def test_explain_says_who_computes_what_is_waited_for_and_what_all_meet_for():
    text = explain(Planned(SHIPPED["mma_sync_small"]))
    assert "threads: 128 compute, a warp for each 16 rows, and load" in text
    for line in (
        "  wait     load_k(t-1), 0 later in flight\n",
        "   wait     load_q, 1 later in flight\n   sync     all threads\n   keep     Q in registers\n",
        "  sync     all threads\n  issue    load_v(t-1)\n",
        "registers: 148 of 255 for fragments: acc_s 32, acc_o 64, Q 32, K 16, row vectors 4\n",
    ):
        assert line in text
    assert "a warp for each 32 rows" in explain(Planned(SHIPPED["mma_sync"]))
    assert "kernel.cluster" not in text and "* kernel.q_operand registers: MMA0 reads Q from registers" in text


# Each with what it is one idea away from.
IDEAS = {
    "mma_sync/eager": "mma_sync/plain",
    **{name: "mma_sync/eager" for name in FAMILY if name not in ("mma_sync/plain", "mma_sync/eager")},
    "mma_sync/double_both": "mma_sync/double_k",
}
# What these change is no operation of the Program.
SAME_PROGRAM = ("mma_sync/x2", "mma_sync/rows", "mma_sync/threshold", "mma_sync/unfused")


def lines(name: str) -> list[str]:
    """Returns the lines of a schedule's file that say something: no comments, no summary."""
    text = (SCHEDULES / f"{name}.yaml").read_text().splitlines()
    return [line for line in text if not line.startswith(("#", "summary:"))]


def changed_lines(before: str, after: str) -> int:
    """Counts the lines that a diff shows as removed or as added, whichever are more."""
    shown = [line[0] for line in difflib.ndiff(lines(before), lines(after))]
    return max(shown.count("-"), shown.count("+"))


def test_every_one_of_the_family_is_one_idea_away_from_another():
    assert {*IDEAS} | {"mma_sync/plain"} == {*FAMILY} and len(FAMILY) >= 11


@pytest.mark.parametrize("name", IDEAS)
def test_one_idea_is_one_to_three_lines(name):
    allowed = 6 if name == "mma_sync/interleaved" else 3
    assert 1 <= changed_lines(IDEAS[name], name) <= allowed
    assert 1 <= changed_lines(name, IDEAS[name]) <= allowed


@pytest.mark.parametrize("name", IDEAS)
def test_one_idea_is_another_kernel(name):
    before, after = SHIPPED[IDEAS[name]], SHIPPED[name]
    assert schedule_values(Planned(before)) != schedule_values(Planned(after))
    assert (derive(before).phases == derive(after).phases) == (name in SAME_PROGRAM)


def test_no_two_are_the_same():
    configured = {name: (head_dim(name), schedule_values(Planned(schedule))) for name, schedule in SHIPPED.items()}
    for a, b in combinations(SHIPPED, 2):
        assert SHIPPED[a] != SHIPPED[b] and FILES[a].summary != FILES[b].summary and configured[a] != configured[b]


@exhaustive
def test_the_generated_code_of_each_is_its_own():
    sources = {lowered(Given(SHIPPED[name], Variant(128, "float16", CAUSAL))).source for name in OF_OTHER_CODE}
    assert len(sources) == len({fingerprint(source) for source in sources}) == len(OF_OTHER_CODE)
