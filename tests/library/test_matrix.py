"""The matrix test makes 4,300 calls of attention() on a Hopper GPU by 105 kernels, each inside the error budget.

The budget is against fp64. The test takes a few minutes on 16 cores, mostly to compile:

    pytest -m gpu -n 15 --dist worksteal tests/library/test_matrix.py

test_matrix_cases.py checks the list, and the check of a case; test_fa3_matrix.py has FlashAttention-3's own calls.
"""

import pytest
from matrix_cases import cases
from matrix_check import fault_of
from matrix_kernels import Kernel, kernels
from on_cpu import forget_plans

from tl_attention.op import compiled
from tl_attention.op.compiled import kernel_of


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", kernels(), ids=str)
def test_every_case_of_a_kernel(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = set()

    def recording(*of_kernel):
        asked.add(of_kernel)
        return kernel_of(*of_kernel)

    forget_plans(monkeypatch)
    monkeypatch.setattr(compiled, "kernel_of", recording)
    found = [fault for case in cases()[kernel] if (fault := fault_of(case, kernel.scheduled))]
    assert not found, "\n".join([f"{len(found)} of {len(cases()[kernel])} cases:", *found])
    # A case of another kernel would be compiled beside it, and the minutes not be those that the list says.
    assert asked == {(kernel.scheduled, kernel.variant)}
