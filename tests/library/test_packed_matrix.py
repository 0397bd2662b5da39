"""attention_varlen makes FlashAttention-3's 6,336 calls of packed sequences, and 2,000 ragged ones, on a Hopper GPU.

    pytest -m gpu -n 15 --dist worksteal tests/library/test_packed_matrix.py

test_packed.py has cases of every kind on the CPU, and sees that the check of a case finds faults.
"""

import random
import sys

import pytest
import torch
from packed_cases import BATCHES, RAGGED, Kernel, few, matrix, mixed, ragged
from packed_check import fault_of


def wrong(cases) -> str:
    draw = random.SystemRandom()
    cases = [*cases]
    found = [fault for case in cases if (fault := fault_of(case, draw.randrange(2**31)))]
    # At once: a run of minutes may be cut.
    print(*found, sep="\n", file=sys.__stderr__, flush=True)
    # The references of long sequences have gigabytes, and other processes share the GPU.
    torch.cuda.empty_cache()
    return "\n".join([f"{len(found)} of {len(cases)} cases:", *found]) if found else ""


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", matrix(), ids=str)
def test_every_pair_of_lengths(kernel: Kernel) -> None:
    assert not wrong(matrix()[kernel])


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", RAGGED, ids=str)
def test_ragged_batches(kernel: Kernel) -> None:
    assert not wrong(ragged(kernel))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", RAGGED, ids=str)
def test_few_queries_that_are_split(kernel: Kernel) -> None:
    assert not wrong(few(kernel, 50))


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", RAGGED, ids=str)
def test_few_queries_beside_prompts(kernel: Kernel) -> None:
    assert not wrong(mixed(kernel, BATCHES))
