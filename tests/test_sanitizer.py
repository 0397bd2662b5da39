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

q, k, v = make_inputs(AttentionShape(1, 2, 200, 333, int(sys.argv[3])), seed=1, device="cuda")
attention(q, k, v, causal=sys.argv[2] == "causal", schedule=sys.argv[1])
torch.cuda.synchronize()
print("it ran")
"""


# And P in shared memory.
CLEAN = (
    *(("best", "all", 128), ("best", "causal", 128), ("best_causal", "causal", 128)),
    ("experiments/p_shared/block_N_192", "causal", 64),
)


@pytest.mark.gpu
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck"])
@pytest.mark.parametrize("name,mask,head_dim", CLEAN)
def test_the_fastest_kernels_are_clean(tool, name, mask, head_dim):
    command = [sys.executable, "-c", PROGRAM, SCHEDULES / f"{name}.yaml", mask, str(head_dim)]
    ran = subprocess.run(["compute-sanitizer", "--tool", tool, *command], capture_output=True, text=True, timeout=300)
    if "Device not supported" in ran.stdout:
        pytest.skip("compute-sanitizer does not work on this machine")
    assert "it ran" in ran.stdout, ran.stdout + ran.stderr
    assert "SUMMARY: 0 hazards" in ran.stdout if tool == "racecheck" else "SUMMARY: 0 errors" in ran.stdout, ran.stdout
