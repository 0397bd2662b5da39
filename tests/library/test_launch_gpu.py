"""A launch on a GPU reads what the kernel before it writes, also if that one lets others begin early."""

import pytest
import torch
from calls import half

from tl_attention import attention
from tl_attention.compiler.generation import machine_code
from tl_attention.compiler.toolchain import use_nvcc
from tl_attention.launch.launcher import function_of
from tl_attention.launch.plan import Dimension, HostPlan, LaunchParameter, SizeExpression
from tl_attention.problem.card import HOPPER
from tl_attention.problem.features import Parameter
from tl_attention.problem.variant import Variant

# One thread block: all other SMs are free for what comes next, which may begin at once.
LATE = """
#include <cuda_fp16.h>
extern "C" __global__ void late(__half* X, int n) {
  asm volatile("griddepcontrol.launch_dependents;");
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < 300000);
  for (int i = threadIdx.x; i < n; i += blockDim.x) X[i] = __float2half(1.0f);
}
"""
ONE = SizeExpression("1")
PLAN = HostPlan(
    "late", (Dimension("n", "X", 0),), (), (LaunchParameter("X", "pointer"), LaunchParameter("n", "int")), (ONE,) * 3,
    (256, 1, 1), (1, 1, 1), 0, ("X",), (), None, None, (),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize(
    "schedule", ["best", "d64", "ws_fa3_192x96", "experiments/early", "experiments/causal/early", None]
)
def test_it_waits_for_the_kernel_before_it(schedule) -> None:
    """A kernel with a cluster, as that of best, reads V too early if it begins beside the late kernel."""
    with use_nvcc():
        code = machine_code(LATE, HOPPER.arch)
    late = function_of(PLAN, code, Variant(128, "float16"), [Parameter("X", "output", ("n",), "float16")])
    dim = 64 if schedule == "d64" else 128
    q, k, v = (half(1, 8, 1024, dim, device="cuda") for _ in "qkv")
    attention(q, k, v, schedule=schedule)
    for _ in range(5):
        v.fill_(torch.nan)
        late(v.view(-1))
        assert torch.equal(attention(q, k, v, schedule=schedule), torch.ones_like(q))
