"""compute-sanitizer on the fastest kernels, at a small ragged shape."""

from __future__ import annotations

import subprocess
import sys

import pytest
from mutations import SCHEDULES

PROGRAM = """
import sys, torch
from tl_attention import attention
from tl_attention.oracle.reference import make_inputs
from tl_attention.problem.shape import AttentionShape

q, k, v = make_inputs(AttentionShape(1, 2, 200, 333, 128), seed=1, device="cuda")
attention(q, k, v, causal=sys.argv[2] == "causal", schedule=sys.argv[1])
torch.cuda.synchronize()
print("it ran")
"""


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("name,mask", [("best", "all"), ("best", "causal"), ("best_causal", "causal")])
def test_the_fastest_kernels_are_clean(tool, name, mask):
    command = [sys.executable, "-c", PROGRAM, SCHEDULES / f"{name}.yaml", mask]
    ran = subprocess.run(["compute-sanitizer", "--tool", tool, *command], capture_output=True, text=True, timeout=300)
    if "Device not supported" in ran.stdout:
        pytest.skip("compute-sanitizer does not work on this machine")
    assert "it ran" in ran.stdout, ran.stdout + ran.stderr
    assert "SUMMARY: 0 hazards" in ran.stdout if tool == "racecheck" else "SUMMARY: 0 errors" in ran.stdout, ran.stdout
