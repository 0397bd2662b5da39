"""Tests check the integer mutants of `tools/mutate_code.py`: how they are drawn, judged by a run, and proved."""

import numpy as np
import pytest
from code_mutants.cases import drawn_cases
from code_mutants.golden_jobs import ask_and_judge, draw_of_all, golden, golden_names
from code_mutants.integers import CASTS, FORMS, OPERATIONS, RANGED, IntegerMutant, draw_integers, read_again, spans
from code_mutants.judged import reason
from code_mutants.judging import DIFFERS, NOT_RUN, OTHER_NUMBERS, SAME_EVENTS, UNMET, judge
from code_mutants.operations import DEVICE, HOST
from code_mutants.proving import BROKEN, REFUSED
from code_mutants.ranges import LANE, Range
from code_mutants.rows import DIFFERENT, EQUIVALENT, TO_JUDGE, class_of
from code_mutants.watched_run import Widths, narrow
from once import shared
from tiers import exhaustive, sampled

from tl_attention.codeproof.read.expression import parsed, walk
from tl_attention.codeproof.registry import PROOFS
from tl_attention.codeproof.run.threads import NUMBERS
from tl_attention.program.derivation import derive

DRAWN = ("best_causal", "best, asked", "short, packed parts", "mma_sync", "best, fixed")
BATCH, HEADS = Range("batch", 1000, 1010), Range("heads", 40, 66)


def of_text(kernel: str, line: str, text: str, operation: str, of_range=None, number: int = 0, part: str = DEVICE):
    """Makes the mutant that changes `text` where it first stands in the first line that has `line`."""
    lines = getattr(golden(kernel)[1], part).split("\n")
    at = next(number for number, there in enumerate(lines) if line in there)
    start = lines[at].index(line) + line.index(text)
    return IntegerMutant(
        part, operation, at, "", start, stop=start + len(text), number=number, range=of_range, kernel=kernel
    )


def judged(mutant: IntegerMutant):
    return judge(*golden(mutant.kernel), mutant)


@pytest.mark.parametrize("name", DRAWN)
def test_a_drawn_mutant_changes_one_expression_that_the_reader_knows(name):
    code = golden(name)[1]
    found = draw_integers(code, 40, "drawn")
    assert len({mutant.key for mutant in found}) == len(found) == 40
    for mutant in found:
        before, after = (getattr(text, mutant.part) for text in (code, mutant.of(code)))
        at = sum(len(line) + 1 for line in before.split("\n")[: mutant.line]) + mutant.place
        whole = before[at : at + mutant.stop - mutant.place]
        assert after == before[:at] + mutant.changed(code) + before[at + len(whole) :] != before
        assert mutant.expression(code) == whole and f"{{{whole} -> {mutant.changed(code)}}}" in mutant.shown(code)
        if mutant.part == DEVICE and mutant.operation not in CASTS:
            assert read_again(mutant.of(code)).kinds[mutant.line] == mutant.kind
        if mutant.range:
            step = code.variant.some_group if mutant.range.subject == "heads" else 1
            assert mutant.range.above // step * step + step < mutant.range.below
    assert {mutant.part for mutant in found} == {DEVICE, HOST}


def test_what_is_drawn_depends_on_the_seed_alone():
    first, again, other = (
        [mutant.key for mutant in draw_of_all(("best", "mma_sync"), 25, seed)] for seed in ("a", "a", "b")
    )
    assert first == again != other and len(first) == 25 and sum(key.endswith(":best") for key in first) == 13
    assert {mutant.operation for mutant in draw_integers(golden("best, asked")[1], 200, "all")} == {*OPERATIONS}


def test_expressions_are_names_numbers_groups_and_calls_of_the_reader():
    text = "blocks = min((a_1 + 2), tl::rank(((int)threadIdx.x) & 31)); f<2>(b)"
    known = {*walk(parsed("min((a_1 + 2), 7)").tree), *walk(parsed("((int)threadIdx.x) & 31").tree)}
    there = [text[start:stop] for start, stop in spans(text, known)]
    # The number in <2> has the tree of one that is known: whether it is read there shows when the code is read again.
    assert there == ["(a_1 + 2)", "a_1", "2", "((int)threadIdx.x)", "31", "2"]


@pytest.mark.parametrize(("name", "of"), [
    ("best", HEADS), ("best, asked", Range("heads", 41, 67)), ("best, asked", Range("window_left", 7, 9)),
    ("short, parts", Range("results", 70, 80)), ("short, parts", Range("part_blocks", 3, 5)),
    ("mma_sync", Range("seq_q", 1_000_000, 1_000_009)), ("mma_sync", Range("((int)blockIdx.y)", 500, 600)),
    ("short, packed parts", Range("heads", 9, 33)), ("best", Range("((int)blockIdx.x)", 60, 63)),
])  # fmt: skip
def test_cases_lie_in_the_range_and_at_its_ends(name, of):
    schedule, code = golden(name)
    cases = drawn_cases(PROOFS[schedule.lowering](schedule, derive(schedule), code), of, 300, "cases")
    name_of = of.subject.replace("((int)", "").rstrip(")").replace(".", "_")
    values = cases.blocks if name_of == "blockIdx_x" else np.asarray(cases.names[name_of])
    inside = (values > of.above) & (values < of.below)
    assert len(cases) > 200 and inside.mean() > 0.4 and not inside.all()


@pytest.mark.parametrize("name", sampled(golden_names(), DRAWN))
def test_a_kernel_runs_in_cases_of_each_range_that_is_drawn(name):
    schedule, code = golden(name)
    ranges = {mutant.range for mutant in draw_integers(code, 12, "ranges") if mutant.part == DEVICE}
    for of in ranges:
        proof = PROOFS[schedule.lowering](schedule, derive(schedule), code)
        run = drawn_cases(proof, of, 48, "cases").run(None, 1, 2)
        assert np.count_nonzero(run.events) == len(run.threads)


def test_mutants_that_do_no_harm_have_the_same_events():
    for line, text, operation, number in (
        ("blocks = max(blocks, 1);", "max(blocks, 1)", "max", 1), ("blocks = max(blocks, 1);", "max(blocks, 1)", "max", 0),
        ("K_full[((base_2 + j) & 1)]", "((base_2 + j) & 1)", "modulo", 2), ("tile = 0;", "0", "within +1", 0),
    ):  # fmt: skip
        found = judged(of_text("best_causal", line, text, operation, HEADS if "within" in operation else None, number))
        assert (found.judged, found.cases > 500) == (SAME_EVENTS, True), (line, found)


WRONG = [
    # One KV block less for a few numbers of heads, a lane, one block.
    of_text("best_causal", "j < blocks_2;", "blocks_2", "within -1", HEADS),
    of_text("best", "= wg;", "wg", "within +1", Range(LANE, 3, 5)),
    of_text("short, packed parts", ", part_end);", "part_end", "within -1", Range("part_end", 40, 42)),
    of_text("mma_sync", "(blocks, 1);", "blocks", "min", None, 1000),
    of_text("mma_sync", "(blocks, 1);", "blocks", "within +1", Range("((int)blockIdx.y)", 77, 79)),
    of_text("seed_causal", "< seq_q", "seq_q", "within -1", BATCH),
]  # fmt: skip


@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: f"{mutant.kernel}, {mutant.operation}")
def test_mutants_that_do_harm_are_found_and_say_where(mutant):
    found = judged(mutant)
    assert found.judged == DIFFERS and "(batch, heads, seq_q, seq_kv)" in found.differs


def test_what_no_case_meets_is_left_to_judge_and_what_masks_alone_read_to_the_numbers():
    # No call has so many batches. The first rows' number is copied for the mask.
    never = of_text("best", "j < blocks_2;", "blocks_2", "within -1", Range("batch", 70_000, 70_002))
    assert judged(never).judged == UNMET
    elected = of_text("best", "K_full[0].init(", "0", "within -1", Range(LANE, 0, 9))
    assert judged(elected).judged == SAME_EVENTS and judged(elected).met == 0
    copied = of_text("best_causal", "int first_row_3 = first_row_1;", "first_row_1", "within +1", HEADS)
    assert judged(copied).judged == OTHER_NUMBERS


def test_the_plan_of_the_host_is_judged_by_its_numbers():
    grid = "(seq_q + 127) // 128"
    assert judged(of_text("mma_sync", grid, grid, "modulo", None, 41, HOST)).judged == DIFFERS
    assert judged(of_text("mma_sync", grid, "127", "modulo", None, 128, HOST)).judged == SAME_EVENTS


@pytest.mark.parametrize(("text", "value"), [
    ("(a * b)", 705_032_704), ("(((int64_t)a) * b)", 5_000_000_000), ("((int64_t)(a * b))", 705_032_704),
    ("((a * b) + s)", 705_032_705), ("((a * s) * b)", 5_000_000_000), ("(a << 20)", 1_778_384_896), ("(a % b)", 0),
])  # fmt: skip
def test_integers_have_32_bits_unless_one_has_64(text, value):
    evaluated = Widths(frozenset({"s"})).of(parsed(text))
    names = {"a": np.array([100_000]), "b": np.array([50_000]), "s": np.array([1])}
    assert evaluated({**NUMBERS, "narrow": narrow}, names).tolist() == [value]


def test_the_class_of_a_mutant_follows_from_its_judgement():
    row = {"outcome": "accepted", "operation": "within +1", "kind": "integer", "digest": "", "after": "integer"}
    found = [class_of(row | {"judged": said}, "") for said in (SAME_EVENTS, OTHER_NUMBERS, DIFFERS, UNMET)]
    assert found == [EQUIVALENT, "numbers: integers", DIFFERENT, TO_JUDGE] and class_of(row, "") == TO_JUDGE
    assert class_of(row | {"machine": "same machine code"}, "") == EQUIVALENT
    assert {*RANGED} < {*FORMS} == {*OPERATIONS}


def test_a_wrong_mutant_is_asked_for_and_judged_in_one_job():
    wrong = of_text("best_causal", "(blocks, 1);", "blocks", "min", None, 3)
    said, by_machine = ask_and_judge(wrong)
    assert said.outcome == REFUSED and by_machine is None
    said, by_machine = ask_and_judge(
        of_text("best_causal", "blocks = max(blocks, 1);", "max(blocks, 1)", "max", None, 1)
    )
    assert by_machine is None or by_machine.judged == SAME_EVENTS


COUNT, CHUNKS = 150, 5


@exhaustive
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_no_drawn_mutant_of_all_golden_kernels_passes(chunk):
    passed, each = [], COUNT // CHUNKS
    # The draw reads a kernel again for each mutant. What is asked of one kernel's mutants is mostly the same.
    drawn = shared("drawn mutants", None, lambda: draw_of_all(golden_names(), COUNT, "integers, CI"))
    for mutant in drawn[chunk * each :][:each]:
        said, by_machine = ask_and_judge(mutant)
        row = {"operation": mutant.operation, "kind": mutant.kind, "shown": mutant.shown(golden(mutant.kernel)[1])}
        harmless = by_machine and (
            by_machine.judged in (SAME_EVENTS, OTHER_NUMBERS, NOT_RUN) or reason(mutant.kernel, row)
        )
        if said.outcome == BROKEN or (by_machine and not harmless):
            words = by_machine.differs if by_machine else said.words
            passed.append(f"{mutant.kernel}, {mutant.part} line {mutant.line + 1}: {row['shown']} [{words}]")
    assert not passed, "\n".join(passed)
