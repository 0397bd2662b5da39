"""A device function stores the LSE: tests check what it does for all threads, and that the proof takes no other text."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace

import pytest
from golden_kernels import KERNELS
from once import lowered, reading
from test_cases_lse import CALL

from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.device_code import STORE_LSE

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

    (tmp_path / "lse.cpp").write_text(HARNESS.format(function=STORE_LSE))
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


def test_the_call_is_named_as_the_function():
    assert CALL.removesuffix("(") in STORE_LSE


# A change of the device function, whatever it is: the proof holds its text to the letter.
TEXTS = {
    "a row beyond the last": ("row < rows", "row <= rows"),
    "a lower row beyond the last": ("row + 8 < rows", "row + 7 < rows"),
    "by two lanes": ("lane % 4 == 0", "lane % 2 == 0"),
    "every row of a warp twice": ("thread / 32 * 16", "thread / 32 * 8"),
    "rows of the hardware's thread": ("thread % 32", "threadIdx.x % 32"),
    "rows of another warp": ("lse[row + 8]", "lse[row + 16]"),
}


@pytest.mark.parametrize("name", ["best", "seed"])
@pytest.mark.parametrize("fault", TEXTS)
def test_another_device_function_is_refused(name, fault):
    kernel = KERNELS[f"{name}, asked"]
    code = lowered(kernel)
    assert code.source.count(TEXTS[fault][0]) >= 1
    at = code.source.index(STORE_LSE)
    changed = code.source[:at] + code.source[at:].replace(*TEXTS[fault], 1)
    with pytest.raises(ScheduleRefused, match="what stands before the kernel is not its prelude"):
        reading.prove(kernel.schedule, replace(code, source=changed))
