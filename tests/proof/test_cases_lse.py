"""A device function stores the LSE, by one line that is read and proved. The LSE's faults: faults/lse.py."""

import ctypes
import subprocess
from dataclasses import replace

import pytest
from code_mutants.kernels import Kernel
from code_mutants.reading import numbers_in, prove
from golden_kernels import KERNELS, OF_FORMS, PROVED
from lse_line import CALL, VALUES, line_of, stores, with_value
from once import lowered, proved
from tiers import exhaustive, sampled

from tl_attention.codeproof.read.copies import OWN
from tl_attention.codeproof.read.expression import arguments
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.shared.device_code import STORE_LSE
from tl_attention.problem.mask import CAUSAL

ASKED = [name for name, kernel in OF_FORMS.items() if "LSE" in kernel.variant.optional and kernel.schedule.has_program]


@pytest.mark.parametrize("name", sampled(ASKED, [*(name for name in ASKED if name in PROVED), "fa3_pipelined, asked"]))
def test_the_proof_reads_and_reaches_the_lines_that_store_it(name):
    """One line stores the LSE, or one a part's and one that of all keys; mma_sync has one for 16 rows of a warp."""
    verdict, variant = proved(KERNELS[name]), KERNELS[name].variant
    found = stores(lowered(KERNELS[name]).source)
    assert len(found) == 1 + (variant.packed and variant.parts) or KERNELS[name].schedule.lowering == "mma_sync"
    assert {verdict.kinds[number] for number in found} == {"output, numbers: registers"}
    assert not {*verdict.unreached} & {*found}


@exhaustive
@pytest.mark.parametrize("name", ["best", "best_causal", "seed"])
def test_everything_else_is_the_kernel_without_it(name):
    plain = KERNELS[name]
    code = lowered(Kernel(plain.name, plain.mask == CAUSAL, optional=frozenset({"LSE"})))
    without = code.source.replace(STORE_LSE.text, "", 1).replace(line_of(code) + "\n", "")
    assert without.replace("float* __restrict__ LSE, ", "") == lowered(plain).source


def test_a_thread_is_counted_among_those_that_compute():
    """Threads that load come first where the compiler puts them first; such a kernel has no Program to prove it by."""
    calls = {name: line_of(lowered(KERNELS[f"{name}, asked"])).strip() for name in ("best", "seed", "inferred")}
    own = {name: arguments(call.removeprefix(CALL).removesuffix(");"))[-1] for name, call in calls.items()}
    assert own == {"best": OWN, "seed": OWN, "inferred": "(((int)threadIdx.x) - 128)"}


def test_without_it_nothing_of_it_is_there():
    for name in ("best", "seed"):
        code = lowered(KERNELS[name])
        assert "LSE" not in code.source + code.host_plan and CALL not in code.source


@pytest.mark.parametrize("name", ["best", "seed"])
def test_a_store_that_was_not_asked_for_is_refused(name):
    """Code is refused that stores the LSE although the variant has none."""
    kernel = KERNELS[f"{name}, asked"]
    code, plain = lowered(kernel), lowered(KERNELS[name])
    without = replace(code.variant, optional=code.variant.optional - {"LSE"})
    kept = tuple(parameter for parameter in code.parameters if parameter.name != "LSE")
    with pytest.raises(ScheduleRefused, match="'.*' stands before the kernel"):
        prove(kernel.schedule, replace(code, variant=without, parameters=kept))
    asked = replace(plain.variant, optional=frozenset({"LSE"}))
    with pytest.raises(ScheduleRefused, match="its caller gives|stands before the kernel"):
        prove(kernel.schedule, replace(plain, variant=asked, parameters=asked.parameters()))


# --- what is left to the numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", sampled(VALUES, ["a sum of one thread", "the sum of the last block"]))
def test_a_fault_of_the_value_passes_the_proof(fault):
    kernel = KERNELS[f"{VALUES[fault][0]}, asked"]
    code = with_value(lowered(kernel), fault)
    [number] = stores(code.source)
    assert numbers_in(prove(kernel.schedule, code).kinds[number]) == "numbers: registers"


HARNESS = """
#include <math.h>
#define __device__
#define __forceinline__ inline
#define __log2f(x) log2f(x)
#define asm
#define volatile(...)
{function}
extern "C" void run(int threads, const float* maxima, const float* sums, float scale, float* lse, int rows) {{
  for (int thread = 0; thread < threads; ++thread) {{
    const int row = thread / 32 * 16 + thread % 32 / 4;
    const float own_max[2] = {{maxima[row], maxima[row + 8]}}, own_sum[2] = {{sums[row], sums[row + 8]}};
    float got[256], *at = got;
    for (int i = 0; i < 256; ++i) got[i] = -1234.0f;
    tl_attention_store_lse(own_max, own_sum, scale, at, rows, thread);
    // Each lane's stores are added to what others stored: twice shows.
    for (int i = 0; i < 256; ++i) if (got[i] != -1234.0f) lse[i] += got[i];
  }}
}}
"""


@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize("rows", [-5, 0, 1, 37, 64, 128, 1000])
def test_the_device_function_stores_each_row_once(threads, rows, tmp_path):
    import numpy as np

    (tmp_path / "lse.cpp").write_text(HARNESS.format(function=STORE_LSE.text))
    subprocess.run(["g++", "-shared", "-fPIC", "-o", "lse.so", "lse.cpp"], cwd=tmp_path, check=True)
    function = ctypes.CDLL(str(tmp_path / "lse.so")).run
    maxima = np.linspace(-30, 50, 256, dtype=np.float32)
    sums = np.linspace(1, 900, 256, dtype=np.float32)
    lse = np.zeros(256, dtype=np.float32)
    pointer = ctypes.POINTER(ctypes.c_float)
    given = (array.ctypes.data_as(pointer) for array in (maxima, sums))
    scale = 0.25
    function(threads, *given, ctypes.c_float(scale * np.log2(np.e)), lse.ctypes.data_as(pointer), rows)
    expected = np.log(sums.astype(float)) + scale * maxima
    stored = max(0, min(rows, threads // 2))
    assert np.allclose(lse[:stored], expected[:stored], atol=1e-5) and (lse[stored:] == 0).all()
