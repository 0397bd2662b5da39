"""Kernels of "flash attention from scratch" are read and written in its notation, wherever a schedule is named."""

import re
from itertools import product

import pytest
from mma_sync_schedules import SHIPPED
from test_mma_sync_table import told
from tiers import exhaustive

from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.lab.measure.published import space
from tl_attention.lab.oracle.interpret import verify
from tl_attention.op import compiled
from tl_attention.problem.card import CARDS
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned
from tl_attention.program.program import Operation
from tl_attention.schedule.configuration import EXAMPLE, STEP, WHOLE, Configuration, parse, schedule_of
from tl_attention.schedule.files.named import resolve

RTX_3090 = CARDS["sm_86"]
SPACE = list(space())
OFF_ON = (False, True)
# Why a tile does not fit, in the words of program/limits.py.
TOO_LARGE = r"^needs [\d,]+ (registers per thread for fragments alone|bytes of shared memory)"


def configuration(options: str, tile: str = "(128, 64, 64, 4)") -> Configuration:
    return parse(f"{tile}: {options}")


# --- the notation


def test_the_words_are_the_values():
    best = Configuration(128, 64, 64, 4, True, True, WHOLE, STEP, WHOLE, True, True)
    assert str(best) == EXAMPLE and parse(EXAMPLE) == best
    assert (best.tile, best.fragments, best.threads) == ((128, 64, 64, 4), (0, 2, 0), 128)
    assert str(Configuration(64, 128, 32, 8)) == "(64, 128, 32, 8): async+load_2_2_2_fragments"


def test_reading_undoes_writing_whatever_is_on():
    found = [
        Configuration(64, 128, 48, 8, eager, swizzled, q, k, v, buffer, fused)
        for eager, swizzled, buffer, fused in product(OFF_ON, repeat=4)
        for q, k, v in product((WHOLE, STEP), repeat=3)
        if not buffer or STEP in (q, k, v)
    ]
    assert len(found) == 16 * 8 - 8 == len({str(one) for one in found})
    assert [parse(str(one)) for one in found] == found


# --- schedules


def test_the_space_has_each_configuration_once():
    assert len(SPACE) == len(set(SPACE)) == 120 and EXAMPLE in map(str, SPACE)
    assert {one.tile for one in SPACE} == {(128, M, N, 4) for M in (64, 128) for N in (32, 64)}


@exhaustive
def test_every_configuration_of_the_space_is_proved_or_refused_for_its_size():
    refused: dict[tuple[int, int], set[str]] = {}
    for one in SPACE:
        try:
            refuse_unless_safe(Planned(schedule_of(one)), one.head_dim, RTX_3090)
        except ScheduleRefused as refusal:
            assert re.match(TOO_LARGE, str(refusal))
            what = "{}{}{}".format(*one.fragments) + "+buffer" * one.buffer
            refused.setdefault((one.block_M, one.block_N), set()).add(what)
    # A Q that stays, beside the accumulators of the largest tile.
    ones = {f"{one}{buffer}" for one in ("000", "002", "020", "022") for buffer in ("", "+buffer")}
    assert refused == {(128, 64): ones - {"000+buffer"}}


def parts(one: Configuration) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the statements of the scores, up to mma0's last, and those from the first load of V's fragments on."""
    emission = schedule_of(one).emission
    scores, output = (next(names for names, _ in emission if load in names) for load in ("mma0.0", "mma1.0"))
    return scores, output[output.index("frag_v.0") :]


def test_fragments_come_whole_or_in_steps_as_those_of_the_shipped_schedules_do():
    for name, options in (
        ("plain", "async+swizzled+load_2_2_2_fragments"),
        ("whole_tile", "async+swizzled+load_2_0_2_fragments"),
        ("fragments", "async+swizzled+load_2_2_2_fragments+buffer"),
    ):
        emission = dict(SHIPPED[f"mma_sync/{name}"].emission)
        scores, output = parts(configuration(options))
        assert scores in emission and output in emission, name


def test_a_whole_q_stays_in_registers_and_whole_fragments_stand_before_the_first_product():
    one = configuration("async+eager+swizzled+load_0_2_0_fragments")
    scores, output = parts(one)
    assert schedule_of(one).kernel.q_operand == "registers" and not [name for name in scores if "frag_q" in name]
    assert scores[:5] == ("mask", "frag_k.0", "mma0.0", "frag_k.1", "mma0.1")
    assert output == tuple(f"{name}.{n}" for name in ("frag_v", "mma1") for n in range(4))


def test_a_buffer_is_of_what_comes_in_steps():
    scores, output = parts(configuration("async+load_2_0_0_fragments+buffer"))
    whole = tuple(f"frag_k.{n}" for n in range(8))
    assert scores[:15] == ("mask", *whole, "frag_q.0", "frag_q.1", "mma0.0", "frag_q.2", "mma0.1", "frag_q.3")
    assert output == parts(configuration("async+load_2_0_0_fragments"))[1]
    table = schedule_of(configuration("async+load_2_2_2_fragments+buffer")).table
    assert table.slots == {"Q_local": 2, "K_local": 2, "V_local": 2}


def steady(options: str) -> list[Operation]:
    return list(derive(schedule_of(configuration(options))).phases.steady.operations)


def test_eager_copies_come_behind_the_barrier_that_frees_their_buffer():
    """V(t) is copied at the iteration's first barrier; K(t+1) after the softmax, before V(t)'s fragments are loaded."""
    operations = steady("async+eager+swizzled+load_2_2_2_fragments")
    two_barriers = ["wait load_k, 0", "sync", "issue load_v", "wait load_v, 0", "sync", "issue load_k"]
    assert told(tuple(operations)) == two_barriers
    names = [op.statement for op in operations]
    assert names[:4] == ["load_k", "threads", "load_v", "frag_k.0"]
    at = names.index("load_k", 1)
    assert names[at - 3 : at] == ["rescale", "load_v", "threads"] and names[at + 1 : at + 3] == ["cast", "frag_v.0"]
    # K is of the block behind the one that is computed.
    assert {op.lag for op in operations if op.statement != "threads"} == {0, 1} and operations[at].lag == 0


def test_copies_that_are_not_eager_are_waited_for_at_once():
    operations = steady("async+swizzled+load_2_2_2_fragments")
    late = ["issue load_k", "wait load_k, 0", "sync", "issue load_v", "wait load_v, 0", "sync"]
    assert told(tuple(operations)) == late
    names = [op.statement for op in operations]
    assert names[names.index("load_v") - 1] == "rescale"


@pytest.mark.parametrize("on", OFF_ON)
def test_the_other_options_are_keys(on):
    one = Configuration(128, 64, 32, 4, swizzled=on, opt_softmax=on)
    found = schedule_of(one)
    assert (found.kernel.swizzle, found.softmax.fused_scale, found.kernel.ldmatrix) == (on, on, "x4")
    assert (found.block_M, found.block_N, found.threads, found.kernel.q_operand) == (64, 32, 128, "shared")
    assert schedule_of(parse(f"(128, 64, 16, 4): {str(one).partition(': ')[2]}")).split.mma1 is None


@pytest.mark.parametrize(
    "text, mask",
    [
        (EXAMPLE, FULL),
        (EXAMPLE, CAUSAL),
        ("(128, 64, 32, 4): async+eager+swizzled+load_0_0_0_fragments", CAUSAL),
        ("(128, 128, 32, 4): async+eager+swizzled+load_2_2_0_fragments+buffer+opt_softmax", Mask(100, 40)),
        ("(128, 128, 64, 4): async+load_2_2_2_fragments", FULL),
        ("(64, 128, 16, 4): async+load_2_0_2_fragments+buffer+opt_softmax", CAUSAL),
    ],
)
def test_the_interpreter_computes_attention_by_them(text, mask):
    one = parse(text)
    schedule = schedule_of(one)
    refuse_unless_safe(Planned(schedule), one.head_dim, RTX_3090)
    reports = verify(derive(schedule), schedule, Variant(one.head_dim, "float16", mask))
    assert {run: report.ok for run, report in reports.items()} == {"late": True, "early": True}


@exhaustive
@pytest.mark.parametrize(
    "text",
    [
        EXAMPLE,
        "(128, 64, 32, 4): async+eager+swizzled+load_2_2_0_fragments",
        "(128, 128, 32, 4): async+load_2_0_2_fragments",
    ],
)
def test_they_are_compiled_for_an_rtx_3090_and_the_generated_code_is_proved(text):
    one = parse(text)
    kernel = compile_kernel(schedule_of(one), Variant(one.head_dim, "float16", FULL, arch=RTX_3090.arch))
    assert kernel.verdict is not None
    assert MachineCode(kernel).report.shared_bytes == (one.block_M + 2 * one.block_N) * one.head_dim * 2
    assert MachineCode(kernel).report.registers <= RTX_3090.registers_per_thread


# --- where names are taken


def test_the_notation_is_a_schedules_name():
    found = resolve(EXAMPLE)
    assert (found.name, found.sources, found.head_dims) == (EXAMPLE, (), (128,))
    assert found.schedule == schedule_of(parse(EXAMPLE)) and resolve(EXAMPLE) is found
    shape = AttentionShape(1, 2, 256, 256, 128)
    assert compiled.schedule_of(EXAMPLE, shape, RTX_3090) == found.schedule
