"""What TileLang generates for gradients is proved, and code with a fault in it is refused in words."""

from __future__ import annotations

import re
from functools import cache

import pytest
from tiers import exhaustive

from tl_attention.codeproof.registry import OF_LOOPS, check_generated
from tl_attention.codeproof.verdict import GeneratedCode, Verdict
from tl_attention.compiler.generation import lowered
from tl_attention.compiler.toolchain import use_nvcc
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve

PROVED = [loop for loop in OF_LOOPS if loop != "forward"]


@cache
def code(variant: Variant) -> GeneratedCode:
    schedule = resolve(f"backward/{variant.loop}").schedule
    lowering = lowering_of(schedule)
    with use_nvcc():
        made = lowered(lowering.prim_func(Planned(schedule), variant), variant.arch, dict(lowering.pass_configs))
    return GeneratedCode(*made, variant, variant.parameters())


def of(loop: str, head_dim: int = 128, dtype: str = "bfloat16", mask: Mask = CAUSAL, group: int = 1) -> Variant:
    return Variant(head_dim, dtype, mask, group=group, loop=loop)


def proved(found: GeneratedCode) -> Verdict:
    planned = Planned(resolve(f"backward/{found.variant.loop}").schedule)
    assert planned.program is not None
    return check_generated(planned.schedule, planned.program, found)


OTHERS = [
    *((loop, case) for loop in PROVED for case in ((64, "float16", FULL), (128, "float16", FULL), (64, "bfloat16"))),
    *(("dq", case) for case in ((64, "float16", FULL, 4), (128, "bfloat16", CAUSAL, 4))),
]
CASES = [*((loop, ()) for loop in PROVED), *(pytest.param(*one, marks=exhaustive) for one in OTHERS)]


@pytest.mark.parametrize("loop, case", CASES, ids=str)
def test_the_generated_code_of_a_gradient_is_proved_and_all_of_it_can_run(loop, case):
    found = code(of(loop, *case))
    verdict = proved(found)
    assert not verdict.unreached and verdict.digest
    kinds = {kind for kind in verdict.kinds if kind}
    assert {"tma load", "mbarrier", "product", "numbers: mask"} <= kinds if case == () else kinds


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
EVERY = [*(("dq", name) for name in FAULTS), *(("dkdv", name) for name in OF_DKDV)]


@pytest.mark.parametrize("loop, name", EVERY)
def test_a_fault_in_the_code_of_a_gradient_is_refused(loop, name):
    pattern, instead, words = (FAULTS if loop == "dq" else OF_DKDV)[name]
    whole = code(of(loop))
    source, changed = re.subn(pattern, instead, whole.source, count=1)
    assert changed, "the generated code has no such line"
    with pytest.raises(ScheduleRefused, match=words):
        proved(GeneratedCode(source, whole.host_plan, whole.variant, whole.parameters))
