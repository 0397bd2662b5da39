"""The kernels of gradients: TileLang lowers them to their Program's operations, and ptxas serialises none of them.

No test here runs one: that needs a GPU.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from test_gradient_loops import SHIPPED, changed
from tiers import exhaustive

from tl_attention.compiler.generation import lowered
from tl_attention.compiler.toolchain import host_compiler, use_nvcc
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.machine_code.nvcc import CUBIN, call_nvcc, serialised_because
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.program.planned import Planned


@cache
def source(loop: str, variant: Variant) -> str:
    """Returns the CUDA that TileLang generates of the shipped schedule of a loop."""
    schedule = SHIPPED[loop]
    lowering = lowering_of(schedule)
    lowering.check_variant(schedule, variant)
    with use_nvcc():
        return lowered(lowering.prim_func(Planned(schedule), variant), variant.arch, dict(lowering.pass_configs))[0]


def of(loop: str, head_dim: int = 128, dtype: str = "bfloat16", mask: Mask = FULL, **more: Any) -> Variant:
    return Variant(head_dim, dtype, mask, **{"group": 1, "loop": loop} | more)


# What stands for each kind of operation in the code.
FORMS = {
    "wait": re.compile(r"(\w+)_full\[.*\]\.wait\("),
    "issue": re.compile(r"tl::wgmma_[sr]s<.*(?:\(uint32_t\*\)|<uint32_t\*>)\((\w+) \+ 0\)"),
    "products": re.compile(r"tl::wait_wgmma<(\d)>"),
    "release": re.compile(r"(\w+)_empty\[.*\]\.arrive\(\)"),
    "fence": re.compile(r"tl::fence_proxy_async\(\)"),
}


def operations(text: str) -> list[str]:
    """Returns the operations in lines of generated code, such as `wait K`, `issue S`, `products 1`, in order."""
    found = []
    for line in text.splitlines():
        for kind, form in FORMS.items():
            if match := form.search(line):
                name = next((group for group in match.groups() if group), "")
                found.append(f"{kind} {re.sub('_[0-9]+$', '', name)}".strip())
    return found


def expected(loop: str) -> list[str]:
    """Returns what an iteration of the steady state must be in code, from the Program."""
    program = derive(SHIPPED[loop])
    table = program.table
    words = []
    for op in program.phases.steady.operations:
        name = op.statement
        if op.kind == "wait" and name in table.products:
            words.append(f"products {op.outstanding}")
        elif op.kind == "issue":
            words.append(f"issue {table.by_name[name].writes[0]}")
        elif op.kind in ("wait", "release"):
            words.append(f"{op.kind} {table.ring_of(name).removesuffix('_shared')}")
        elif op.kind == "fence":
            words.append("fence")
    return words


@pytest.mark.parametrize("mask", [FULL, pytest.param(CAUSAL, marks=exhaustive)], ids=str)
@pytest.mark.parametrize("loop", SHIPPED)
def test_an_iteration_of_the_generated_loop_is_that_of_the_program(loop, mask):
    text = source(loop, of(loop, mask=mask))
    loops = re.split(r"\n *for \(int t(?:_\d+)? = 0; ", text)[1:]
    bodies = [operations(body.split("\n      }\n")[0]) for body in loops]
    assert len(loops) == (1 if mask == FULL else 2), "one loop of blocks without a mask, one of blocks with one"
    for body in bodies:
        assert body[: len(expected(loop))] == expected(loop)


def test_row_vectors_come_in_the_phase_of_their_tile():
    text = source("dkdv", of("dkdv"))
    producer = text[text.index("warpgroup_reg_dealloc") :]
    loads = re.findall(r"tl::tma_load\((\w+)_desc, (\w+)_full\[", producer[: producer.index("warpgroup_reg_alloc")])
    assert loads == [("Q", "Q"), ("RowLSE", "Q"), ("dO", "dO"), ("RowD", "dO"), ("K", "K"), ("V", "V")]
    # Bytes of 64 rows of 128 columns, and of 64 numbers.
    assert "expect_transaction(16384)" in producer and re.search(r"expect_transaction\((16640|256)\)", producer)


@pytest.mark.parametrize("packed", [False, True], ids=["dense", "packed"])
@pytest.mark.parametrize("optional", [frozenset(), frozenset({"dLSE"})], ids=["", "with dLSE"])
def test_the_device_code_finds_lse_and_d_of_rows_that_are_there_and_pads_the_others(
    packed, optional, tmp_path: Path
) -> None:
    """+inf stands for the LSE of rows without a key and behind the last, whose O, dO and dLSE are not read."""
    variant = of("dq", packed=packed, optional=optional)
    _, facts, *_ = lowering_of(SHIPPED["dq"]).device_code(SHIPPED["dq"], variant)
    (tmp_path / "row_facts.h").write_text(facts.text)
    defined = ["-DSTRIDES=384,136"] * packed + ["-DWITH_D_LSE"] * len(optional)
    compiler = [host_compiler() or "c++", "-std=c++20", "-O1", f"-I{tmp_path}", *defined]
    made = tmp_path / "row_facts"
    subprocess.run([*compiler, Path(__file__).with_name("row_facts_on_host.cpp"), "-o", made], check=True)
    found = [
        line.split() for line in subprocess.run([made], check=True, capture_output=True, text=True).stdout.splitlines()
    ]
    assert len(found) == 24 and all(float(error) < 1e-4 and wrong == "0" for error, wrong in found), found


LACKING = [
    ({"head_dim": 192}, "head_dim 192"),
    ({"head_dim_v": 136}, "head_dim 128/136"),
    ({"group": None}, "a ratio of heads that the launch says"),
    ({"optional": frozenset({"Sinks"})}, "Sinks"),
    ({"optional": frozenset({"LSE"})}, "LSE"),
]


@pytest.mark.parametrize("asked, words", LACKING, ids=str)
def test_what_the_kernels_do_not_compute_yet_is_told(asked, words):
    schedule = SHIPPED["dq"]
    variant = Variant(**{"head_dim": 128, "dtype": "float16", "loop": "dq", "group": 1} | asked)
    with pytest.raises(ScheduleRefused, match=f"^{words}.*, which lowering warp_specialized does not compute$"):
        lowering_of(schedule).check_variant(schedule, variant)


APART = [
    (
        "dq",
        {
            "order": [-1, -1, 0, 1, 2, 3, 4],
            "group": [["load_v"], ["load_k"], ["s", "mask"], ["dp"], ["exp"], ["ds"], ["dq"]],
        },
    ),
    ("dkdv", {"group": [["load_q"], ["load_do"], ["s"], ["dp"], ["mask", "exp"], ["cast_p", "dv"], ["ds"], ["dk"]]}),
]


@pytest.mark.parametrize("loop, keys", APART, ids=["dq", "dkdv"])
def test_a_softcap_needs_what_makes_p_in_one_group(loop, keys):
    schedule = changed(loop, **keys)
    lowering = lowering_of(schedule)
    lowering.check_variant(schedule, of(loop))
    with pytest.raises(ScheduleRefused, match="^softcap where mask, exp and cast_p are not in one group, which"):
        lowering.check_variant(schedule, of(loop, optional=frozenset({"softcap"})))


OF_SOFTCAP = {"optional": frozenset({"softcap"}), "mask": CAUSAL}
CASES = [
    *((loop, {"head_dim": d, "mask": mask}) for loop in SHIPPED for d in (64, 128) for mask in (FULL, CAUSAL)),
    *((loop, {"dtype": "float16", "group": 4, "mask": CAUSAL}) for loop in SHIPPED),
    *((loop, {"head_dim": 96, "mask": Mask(1, 1).runtime}) for loop in SHIPPED),
    *((loop, OF_SOFTCAP | more) for loop in SHIPPED for more in ({}, {"group": 4, "packed": True})),
    ("dq", {"optional": frozenset({"dLSE"})}),
    *((loop, {"head_dim": d, "group": n, "packed": True}) for loop in SHIPPED for d, n in ((64, 1), (128, 4))),
    *((loop, {"mask": CAUSAL, "group": 4, "packed": True}) for loop in SHIPPED),
]


@exhaustive
@pytest.mark.parametrize("loop, case", CASES, ids=str)
def test_ptxas_serialises_no_product_and_spills_nothing_in_a_loop(loop, case):
    text = source(loop, of(loop, **case))
    with use_nvcc() as nvcc:
        done = call_nvcc(nvcc, text, "sm_90a", more=(CUBIN, "-Xptxas", "-v"))
    words = done.stdout + done.stderr
    assert done.returncode == 0 and not serialised_because(words), words
    spilled = sum(map(int, re.findall(r"(\d+) bytes spill stores", words)))
    # A few numbers of a tile may be spilled, outside of its loops; with a softcap and a list some inside.
    few = 128 if "softcap" in case.get("optional", ()) else 80 if case.get("packed") else 56
    is_plain = not case.get("packed") and case.get("group", 1) == 1 and case.get("mask", FULL) == FULL
    assert spilled <= (0 if is_plain else few), words
