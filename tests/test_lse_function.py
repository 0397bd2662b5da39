"""A device function stores the LSE: tests check what it does for all threads, and that the proof takes no other text."""

from __future__ import annotations

import ctypes
import subprocess

import pytest

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
