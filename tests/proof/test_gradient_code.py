"""TileLang's code for gradients is proved, and code with a fault in it is refused in words."""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import pytest
from covering import covering
from tiers import exhaustive

from tl_attention.codeproof.registry import OF_LOOPS, check_generated
from tl_attention.codeproof.verdict import GeneratedCode, Verdict
from tl_attention.compiler.generation import lowered
from tl_attention.compiler.toolchain import use_nvcc
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of, parameters_of
from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

PROVED = [loop for loop in OF_LOOPS if loop != "forward"]


def schedule_of(loop: str, tiles: str) -> Schedule:
    """Returns the schedule of a loop that ships, whose tiles come as `tiles` says."""
    shipped = resolve(f"backward/{loop}").schedule
    return Schedule(**shipped.model_dump() | {"kernel": {**shipped.kernel.model_dump(), "tile_scheduler": tiles}})


@cache
def code(variant: Variant, tiles: str = "static") -> GeneratedCode:
    schedule = schedule_of(variant.loop, tiles)
    lowering = lowering_of(schedule)
    with use_nvcc():
        made = lowered(lowering.prim_func(Planned(schedule), variant), variant.arch, dict(lowering.pass_configs))
    return GeneratedCode(*made, variant, parameters_of(schedule, variant))


def of(
    loop: str, size: HeadSize = 128, dtype: str = "bfloat16", mask: Mask = CAUSAL, group: int = 1, *more: str
) -> Variant:
    """Returns a variant; `more` are names of optional parameters, and how tensors lie if not contiguous."""
    head_dim, head_dim_v = sizes_of(size)
    lies, optional = {"strided", "packed"} & {*more}, frozenset(more) - {"strided", "packed", "contiguous"}
    return Variant(head_dim, dtype, mask, head_dim_v, None, optional, group, **dict.fromkeys(lies, True), loop=loop)


def proved(found: GeneratedCode, tiles: str = "static") -> Verdict:
    planned = Planned(schedule_of(found.variant.loop, tiles))
    assert planned.program is not None
    return check_generated(planned.schedule, planned.program, found)


OF_FOUR = ("dkdv", (128, "bfloat16", CAUSAL, 4))
OF_LSE = ("dq", (128, "bfloat16", CAUSAL, 1, "dLSE"))
WINDOWS = [Mask(*sides).runtime for sides in ((1, 1), (1, None), (None, 1))]
# By name, and not what a schedule decides.
AXES: dict[str, tuple[Any, ...]] = {
    "loop": tuple(PROVED),
    "size": (64, 96, 128, 72, "40/104"),
    "dtype": ("bfloat16", "float16"),
    "mask": (FULL, CAUSAL, *WINDOWS),
    "group": (1, 2, 3, 4),
    "softcap": (False, True),
    "dLSE": (False, True),
    "lies": ("contiguous", "strided", "packed"),
}
DRAWN = 29


@cache
def covered() -> list[Variant]:
    """Returns variants such that each two values of two axes have one."""
    rows = covering(AXES, lambda row: row["loop"] == "dq" or not row["dLSE"], set(), random.Random(1))
    flags = ("softcap", "dLSE")
    return [
        of(*(row[name] for name in [*AXES][:5]), *(name for name in flags if row[name]), row["lies"]) for row in rows
    ]


CASES = [*((loop, ()) for loop in PROVED), OF_FOUR, OF_LSE]


@pytest.mark.parametrize("loop, case", CASES, ids=str)
def test_the_generated_code_of_a_gradient_is_proved_and_all_of_it_can_run(loop, case):
    found = code(of(loop, *case))
    verdict = proved(found)
    assert not verdict.unreached and verdict.digest
    kinds = {kind for kind in verdict.kinds if kind}
    assert {"tma load", "mbarrier", "product", "numbers: mask"} <= kinds if case == () else kinds


BY_COUNTER = [
    *((loop, (128, "bfloat16", CAUSAL, group)) for loop, group in zip(PROVED, (1, 4))),
    *((loop, (96, "float16", CAUSAL, group, "packed")) for loop, group in zip(PROVED, (1, 3))),
]


@pytest.mark.parametrize("loop, case", BY_COUNTER, ids=str)
def test_tiles_of_gradients_may_come_from_a_counter(loop, case):
    found = code(of(loop, *case), "dynamic")
    assert found.parameters[-1].name == "TileCounter"
    verdict = proved(found, "dynamic")
    assert not verdict.unreached and verdict.digest


# Of a batch and of packed sequences.
OF_COUNTER = {
    "a counter that jumps": (r"(AtomicAddRet\(\(&\(TileCounter\[0\]\)\), )1", r"\g<1>2", "grows by 2, expected 1"),
    "a tile of another block": (r"(next_tile.*)\+ workers", r"\1+ workers + 1", "the number that is told"),
    "a place that is not waited for": (r"\n *tile_empty.*wait.*\n", r"\n", "expected wait tile_empty"),
    "a counter that goes on": (r"\n *TileCounter\[0\] = 0;\n", r"\n", "the counters of tiles"),
    "a reset by the first block": (r"== \(workers - 1\)", r"== 0", "the counters of tiles"),
}
OF_PACKED_COUNTER = {
    "drawn for other workers": (r"(tl_attention_draw\(.*), workers\)", r"\1, workers - 1)", "where it does take|take"),
    "a number that lane 0 alone has": (r"tl_attention_drawn\(drawn\);", "drawn;", "cannot be read"),
    "a number that nothing has drawn": (r"_drawn\(drawn\)", r"_drawn(number)", "takes from lane 0 what it has not"),
    "a counter that is not reset": (r"\n *TileCounter\[1\] = 0;\n", r"\n", "the counters of tiles"),
}


def hold_refused(variant: Variant, fault: tuple[str, str, str], tiles: str = "static") -> None:
    """Asserts that code with a fault, (pattern, what stands in its place, words), is refused by the words."""
    pattern, instead, words = fault
    whole = code(variant, tiles)
    source, changed = re.subn(pattern, instead, whole.source, count=1)
    assert changed, "the generated code has no such line"
    with pytest.raises(ScheduleRefused, match=words):
        proved(GeneratedCode(source, whole.host_plan, whole.variant, whole.parameters), tiles)


@pytest.mark.parametrize("name", OF_COUNTER)
def test_a_fault_in_what_counts_tiles_is_refused(name):
    loop, case = BY_COUNTER[0]
    hold_refused(of(loop, *case), OF_COUNTER[name], "dynamic")


@pytest.mark.parametrize("name", OF_PACKED_COUNTER)
def test_a_fault_in_what_counts_packed_tiles_is_refused(name):
    loop, case = BY_COUNTER[2]
    hold_refused(of(loop, *case), OF_PACKED_COUNTER[name], "dynamic")


def test_blocks_of_gradients_take_a_tile_after_the_other():
    with pytest.raises(ValueError, match="one_tile, expected static or dynamic"):
        schedule_of("dq", "one_tile")


@exhaustive
@pytest.mark.parametrize("number", range(DRAWN))
def test_each_two_of_what_a_kernel_may_be_are_proved_together(number):
    assert len(covered()) == DRAWN
    verdict = proved(code(covered()[number]))
    assert not verdict.unreached and verdict.digest


# By name: what is changed, as a pattern and what stands in its place, and the words of the refusal.
FAULTS = {
    "another slot of K": (r"(K_full\[\(\(\(base_3 \+ t\) )\+ 1\)", r"\1+ 2)", "the index of wait K_full"),
    "V is not waited for": (r"\n *V_full\[\(\(\(base_3 \+ t\).*\n", r"\n", "expected wait V_full"),
    "dO is not waited for": (r"\n *dO_full\[\(\(int64_t\)wg_2\).*\n", r"\n", "expected wait dO_full"),
    "released early": (r"tl::wait_wgmma<0>\(\);", r"tl::wait_wgmma<1>();", "acc_dp is used before the wait"),
    "dQ is not cleared": (r"\(\(0 < ki_2\) \? 1 : 0\)", r"1", "the choice to keep the accumulators of product K"),
    "dQ is cleared again": (r"(acc_dq \+ 0\), )1\)", r"\g<1>0)", "a product's instructions read slots"),
    "the store is left out": (r"\n *tl_attention_store<.*\n", r"\n", "ends before output dQ"),
    "another accumulator is stored": (r"(_store<128, true>\()acc_dq", r"\1acc_s", "'acc_s'.* as dQ, expected"),
    "a row more is stored": (r"(_store<.*)\(seq_q - (\w+)\)\)", r"\1(seq_q - \2 + 1))", "output dQ"),
    "LSE and D are left out": (r"\n *tl_attention_row_facts<.*\n", r"\n", "expected row facts"),
    "D of another tile": (r"(RowD\[.*?\(\(int64_t\)row)\)", r"\1 + 64)", "row facts of warpgroup 0"),
    "dO of another head": (r"(\(&\(dO\[.*?\(\(int64_t\)head_3\))", r"\1 + 1", "row facts of warpgroup 0"),
    "O for dO": (r"\(&\(O\[", r"(&(dO[", "finds LSE and D of"),
    "D where LSE belongs": (r"row_facts<128, true>\(row_lse, row_d", "row_facts<128, true>(row_d, row_d", "LSE and D"),
    "a row more has an LSE": (r"\(seq_q - row\)\);", r"(seq_q - row + 1));", "row facts of warpgroup 0"),
    "LSE is not padded": (r"of_row != -exponent", r"true", "stands before the kernel, expected"),
    "a mask is left out": (r"-CUDART_INF_F", r"0x0p+0f/*0.000000e+00*/", "has hidden keys behind"),
    "masks end a block early": (r"blocks_3 - visible_1\)", r"blocks_3 - visible_1 - 1)", "of warpgroup 0"),
    "K of another head": (r"(tma_load\(K_desc.*), head_2, bz_2\)", r"\1, head_2 + 1, bz_2)", "head of load K"),
    "V's box of the block before": (r"(tma_load\(V_desc.*) - 64\), head_2", r"\1 - 128), head_2", "the row of load V"),
    "dO into the rows of Q": (
        r"\(\((bfloat16_t)\*\)dO_shared\)\[\(\(wg_1",
        r"((\1*)Q_shared)[((wg_1",
        "a load into slot 0 of Q on",
    ),
    "fewer bytes of dO": (r"(dO_full\[wg_1\]\.expect_transaction\()16384", r"\g<1>8192", "8192 bytes of a tile"),
    "a row fact behind the loop": (
        r"(\n *tl_attention_row_facts<.*)((?:.*\n)+?)( *tl_attention_store<)",
        r"\2\1\n\3",
        "expected row facts",
    ),
}


OF_DKDV = {
    "LSE of another slot": (r"(LSE_shared\) \+ \(\(\(\(base_3) & 1", r"\1 + 1 & 1", "index of read Q"),
    "LSE behind its slot": (r"(LSE_shared\) \+ .*?threadIdx.x\) & 3\) \* 2\))", r"\1 + 2", "not of one slot"),
    "LSE for D": (r"= \*\(float2\*\)\(\(\(float\*\)D_shared\)", r"= *(float2*)(((float*)LSE_shared)", "read Q"),
    "D of another block": (r"(tma_load\(RowD_desc.*) - 64\), head_2", r"\1 - 128), head_2", "the row of load D"),
    "LSE of another head": (r"(tma_load\(RowLSE_desc.*), head_2, bz_2\)", r"\1, head_2 + 1, bz_2)", "head of load LSE"),
    "LSE on the mbarrier of dO": (r"(RowLSE_desc, )Q_full", r"\1dO_full", "a load into slot"),
    "LSE's bytes are not expected": (r"\n *Q_full\[.*expect_transaction\(256\);\n", r"\n", "expect LSE by Q_full"),
    "LSE where D belongs": (r"(RowD_desc.*float\*\))D_shared", r"\1LSE_shared", "RowD_desc|a load into slot"),
    "no fence before a release": (r"\n *tl::fence_proxy_async\(\);\n", r"\n", "expected fence"),
    "P is not waited for": (r"tl::wait_wgmma<1>\(\);", r"tl::wait_wgmma<2>();", "acc_s is used before the wait"),
    "dK is not stored": (r"\n *tl_attention_store<128, true>\(acc_dk.*\n", r"\n", "expected output dK"),
    "dV is stored as dK": (r"(_store<128, true>\(acc_dv, \(&\()dV", r"\1dK", "'acc_dv'.* as dK, expected"),
    "dV is not cleared": (r"\(\(0 < ki_2\) \? 1 : 0\)", r"1", "the choice to keep the accumulators of product dO"),
    "dK multiplies P": (r"(<const uint32_t\*>\()ds_cast", r"\1acc_s_cast", "a product of acc_s_cast"),
    "K of the other warpgroup": (r"(desc_a, \()wg_2", r"\g<1>(1 - wg_2)", "reads other columns"),
    "dO is released early": (
        r"(\n *tl::wait_wgmma<1>\(\);\n.*acc_dv.*)((?:\n.*)*?dO_empty.*\n *\})",
        r"\2\1",
        "dO_empty|expected products wait|not fenced before what follows it",
    ),
    "a transposed mask is left out": (r"-CUDART_INF_F", r"0x0p+0f/*0.000000e+00*/", "has hidden keys behind|or before"),
    "masks begin a block late": (r"blocks_3 - cut_1\)", r"blocks_3 - cut_1 + 1)", "warpgroup 0"),
    "a key more is stored": (r"(_store<.*)\(seq_kv - (\w+)\)\)", r"\1(seq_kv - \2 + 1))", "output dK"),
    "tiles are cut by queries": (r"\(seq_kv \+ 127\) >> 7", r"(seq_q + 127) >> 7", "producer of block 0"),
}
# Of kernels whose tiles have several heads of Q, one behind the other.
LOADED, COMPUTED = r"(\n *base = \(base \+ blocks\);\n)", r"(\n *base_1 = \(base_1 \+ blocks_1\);\n)"
OF_MEMBERS = {
    "dV is cleared for each member": (
        r"(acc_dv \+ 0\), .*)\(member_1 == 0\) \? 0 : 1",
        r"\g<1>0",
        "keep the accumulators of product dO .* is 0, expected 1",
    ),
    "dK is cleared for no member": (
        r"(acc_dk \+ 0\), .*)\(member_1 == 0\) \? 0 : 1",
        r"\g<1>1",
        "keep the accumulators of product Q .* is 1, expected 0",
    ),
    "dK is cleared for the last": (
        r"(acc_dk \+ 0\), .*)member_1 == 0",
        r"\1member_1 == 3",
        "keep the accumulators of product Q .* is 1, expected 0",
    ),
    "dK and dV are stored for each member": (
        r"(head_1 = \(head_1 \+ 1\);\n)( *\}\n.*head_1 .*\n)((?:.*\n)*?.*acc_dv, .*\n)",
        r"\1\3\2",
        "does output dK",
    ),
    "the next member has the first's Q": (r"(tma_load\(Q_desc.*)head_2,", r"\1(head_2 - member),", "head of load Q"),
    "the next member has the first's dO": (r"(tma_load\(dO_desc.*)head_2,", r"\1(head_2 - member),", "head of load dO"),
    "the next member has the first's LSE": (r"(RowLSE_desc, Q.*)head_2,", r"\1(head_2 - member),", "head of load LSE"),
    "the next member has the first's D": (r"(RowD_desc, dO.*)head_2,", r"\1(head_2 - member),", "head of load D"),
    "every member is the first": (r"\n *head = \(head \+ 1\);\n", r"\n", "head of load Q"),
    "members come in pairs": (r"(\n *head = \(head \+ )1", r"\g<1>2", "head of load Q"),
    "a member is not loaded": (r"member < 4", r"member < 3", "the producer of block 0 ends before wait Q_empty"),
    "a member is left out": (r"member_1 < 4", r"member_1 < 3", "does output dK.*, expected wait K_full"),
    "a member too many is loaded": (r"member < 4", r"member < 5", "has a loop, expected none"),
    "a member too many": (r"member_1 < 4", r"member_1 < 5", "does wait K_full.*, expected output dK"),
    "loads begin again with each member": (LOADED, r"\n base = 0;\n", "the index of wait Q_empty"),
    "loads stay with each member": (LOADED, r"\n", "the index of wait Q_empty"),
    "reads begin again with each member": (COMPUTED, r"\n", "the index of wait Q_full"),
    "reads are a block ahead": (COMPUTED, r"\n base_1 = (base_1 + blocks_1) + 1;\n", "the index of wait Q_full"),
    "tiles' parity goes on with members": (LOADED, r"\1 turn = (turn + 1);\n", "turn of the producer"),
    "the parity of K goes on with members": (COMPUTED, r"\1 turn_1 = (turn_1 + 1);\n", "the value of wait K_full"),
    "K's head divided wrongly": (r"(tma_load\(K_desc.*)head_2 >> 2", r"\1head_2 >> 1", "head of load K"),
    "V's head not divided": (r"(tma_load\(V_desc.*)\(head_2 >> 2\)", r"\1head_2", "head of load V"),
    "dK's head divided wrongly": (r"(acc_dk, \(&.*head_3\) >> \(int64_t\))2", r"\g<1>1", "output dK"),
    "dV of the head behind": (r"\n *head_1 = \(head_1 - 1\);\n", r"\n", "output dK"),
    "tiles counted by heads of Q": (r"\(heads >> 2\)\) \* batch", r"heads) * batch", "does not fit 32 bits"),
    "the group's first head is its number": (r"\n *head = \(head \* 4\);\n", r"\n", "head of load Q"),
    "K and V released after the first": (
        r"member_1 == 3",
        r"member_1 == 0",
        "does arrive V_empty.*, expected products wait",
    ),
    "K and V released after each": (r"member_1 == 3", r"member_1 < 4", "does arrive V_empty.*, expected products wait"),
    "K and V not released": (r"member_1 == 3", r"member_1 == 4", "expected arrive V_empty"),
    "K is released a member early": (
        r"(member_1 == 3)((?:.*\n)*?)( *K_empty.*\n)",
        r"member_1 > 1\2if (member_1 == 2) {\n\3}\n",
        "does arrive V_empty.*, expected products wait",
    ),
    "K and V loaded for each member": (
        r"\(j \+ member\) == 0",
        r"j == 0",
        "does wait, expect, load, arrive.*, expected none",
    ),
    "K and V loaded with the last": (
        r"\(j \+ member\) == 0",
        r"(j + member) == 3",
        "where it does wait, expect, load, arrive",
    ),
}
# A window's left side hides queries behind those that a row of keys sees, and its right side those before them.
OF_WINDOW = {
    "the sides are exchanged": (r"seq_q \+ window_left(.*\n)", r"seq_q + window_right\1", "the row of load Q"),
    "queries begin a block late": (
        r"(first = \(max\(.* - window_right\)), 0\) >> 6\)",
        r"\1, 0) + 64 >> 6)",
        "row of load",
    ),
    "queries end a block early": (r"(blocks = min\(blocks, .*) \+ 191\)", r"\1 + 127)", "producer of block 0"),
    "edges of the window are not masked": (
        r"(cut = .*) >> 6\) - first_1\);",
        r"\1 >> 6) - first_1 - 1);",
        "warpgroup 0",
    ),
    "more columns are stored": (r"_store_columns<72", r"_store_columns<80", "as dK, expected"),
    "a store of whole tiles": (r"_store_columns<72", r"_store<72", "as dK, expected"),
}
OF_SOFTCAP = {
    "LSE is read before its load": (
        r"(\n *Q_full\[\(base_3 & 1\)\]\.wait\(.*)((?:\n.*)*?)(\n *for \(int i_\d+ = 0; i_\d+ < 16;.*\n)",
        r"\2\3",
        "wait Q_full",
    ),
    "LSE of another slot": (r"(LSE_shared\) \+ \(\(\(\(base_3) & 1", r"\1 + 1 & 1", "index of read Q"),
}
# Of a kernel whose LSE has a gradient.
OF_D_LSE = {
    "dLSE of another head": (r"(\(&\(dLSE\[.*?\(\(int64_t\)head_3\))", r"\1 + 1", "place of dLSE of row facts"),
    "dLSE of the next row": (r"(\(&\(dLSE\[.*?\(\(int64_t\)row\))", r"\1 + 1", "place of dLSE of row facts"),
    "dLSE of another batch": (r"(\(&\(dLSE\[.*?)bz_3", r"\g<1>head_3", "place of dLSE of row facts|32 bits"),
    "dLSE lies as rows of D": (r"(\(&\(dLSE\[.*)\(\(int64_t\)seq_q\)", r"\1((int64_t)rows)", "place of dLSE"),
    "dLSE is left out": (r", \(&\(dLSE\[[^&]*\]\)\)(, \(seq_q)", r"\1", "finds LSE and D of .*'RowD'\\), expected"),
    "LSE for dLSE": (r"\(&\(dLSE\[", "(&(LSE[", "finds LSE and D of .*'LSE'.*'RowD', 'LSE'.*, expected"),
    "dLSE for LSE": (r"\(&\(LSE\[", "(&(dLSE[", "finds LSE and D of"),
    "dLSE and D change places": (
        r"(\(&\()RowD(\[[^&]*\(&\()dLSE",
        r"\1dLSE\2RowD",
        "finds LSE and D of .*'dLSE', 'RowD'.*, expected",
    ),
    "dLSE is added": (r"sum -= d_lse", "sum += d_lse", "stands before the kernel, expected"),
    "dLSE is not taken off": (r"\n.*sum -= d_lse\[row\];\n", "\n", "stands before the kernel, expected"),
    "dLSE of rows behind the last": (
        r"if \(exponent < __int_as_float\(0x7f800000\)\) sum -=",
        "sum -=",
        "stands before the kernel, expected",
    ),
    "dLSE for each lane's part": (
        r"((?:\n.*__shfl_xor_sync\(0xffffffff, sum, .*){2})(\n.*sum -= d_lse\[row\];)",
        r"\2\1",
        "stands before the kernel, expected",
    ),
}
OF_GROUPS = {
    "dq": (FAULTS, ()),
    "dkdv": (OF_DKDV, ()),
    "dkdv of 4": (OF_MEMBERS, OF_FOUR[1]),
    "dkdv in a window": (OF_WINDOW, (72, "bfloat16", WINDOWS[0])),
    "dkdv with a softcap": (OF_SOFTCAP, (128, "bfloat16", CAUSAL, 1, "softcap")),
    "dq with dLSE": (OF_D_LSE, OF_LSE[1]),
}
EVERY = [(kernel, name) for kernel, (faults, _) in OF_GROUPS.items() for name in faults]


@pytest.mark.parametrize("kernel, name", EVERY)
def test_a_fault_in_the_code_of_a_gradient_is_refused(kernel, name):
    faults, case = OF_GROUPS[kernel]
    hold_refused(of(kernel.partition(" ")[0], *case), faults[name])
