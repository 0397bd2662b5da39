"""compute-sanitizer runs on small ragged shapes: the fastest kernels, and each variant in both lowerings.

pytest -m gpu tests/library/test_sanitizer.py -k variant     # three minutes on 16 cores: it starts processes of its own
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from mma_sync_schedules import TOP, head_dim
from mutations import SCHEDULES
from on_cpu import Kernels, on_cpu
from pebble import ProcessPool
from sanitized_cases import SCHEDULES as OF_VARIANTS
from sanitized_cases import VARIANTS, case, kernel, launch

from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.op.compiled import kernel_of
from tl_attention.program.planned import Planned

__all__ = ["on_cpu"]
TOOLS = ("memcheck", "racecheck", "synccheck")
PROGRAM = """
import sys, torch
from tl_attention import attention
from tl_attention.lab.oracle.reference import make_inputs
from tl_attention.problem.shape import AttentionShape

q, k, v = make_inputs(AttentionShape(1, 2, 200, 333, int(sys.argv[3])), seed=1, device="cuda")
attention(q, k, v, causal=sys.argv[2] == "causal", schedule=sys.argv[1])
torch.cuda.synchronize()
print("it ran")
"""
# A mix in pages: of the tables' entries behind a last key some name no page.
PAGED = """
import sys, torch
from tl_attention import attention_varlen
from tl_attention.lab.oracle.pages import in_pages

lengths, size = [(1, 700), (150, 333), (0, 5), (3, 0), (1, 1)], int(sys.argv[1])
rows, keys = (sum(of) for of in zip(*lengths))
q, k, v = (torch.randn(n, heads, 128, dtype=torch.bfloat16) for n, heads in ((rows, 4), (keys, 2), (keys, 2)))
(k, v), table = in_pages((k, v), [of for _, of in lengths], size, 1)
used = torch.tensor([of for _, of in lengths], dtype=torch.int32)
table[torch.arange(table.shape[1]) >= (used[:, None] + size - 1) // size] = 2**31 - 1
begins = torch.tensor([0, *(of for of, _ in lengths)]).cumsum(0).int()
q, k, v, table, used, begins = (x.cuda() for x in (q, k, v, table, used, begins))
for causal in (True, False):
    attention_varlen(q, k, v, begins, None, 150, 700, seqused_k=used, block_table=table, causal=causal, return_lse=True)
torch.cuda.synchronize()
print("it ran")
"""
# Each tensor is an allocation of its own, whose end memcheck knows.
PATH = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": PATH}
MOST_PROCESSES = 16


def sanitized(tool: str, *command: object) -> str:
    """Returns what the sanitizer says of a command of Python, and what the command printed."""
    line = ["compute-sanitizer", "--tool", tool, sys.executable, *map(str, command)]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=400, env=os.environ | ENVIRONMENT)
    return ran.stdout + ran.stderr


def is_clean(tool: str, said: str) -> bool:
    return ("SUMMARY: 0 hazards" if tool == "racecheck" else "SUMMARY: 0 errors") in said


def check_clean(tool: str, *command: object) -> None:
    """Checks that the sanitizer finds nothing in a program that says that it ran."""
    said = sanitized(tool, *command)
    if "Device not supported" in said:
        pytest.skip("compute-sanitizer does not work on this machine")
    assert "it ran" in said and is_clean(tool, said), said


# And P in shared memory, and those of mma_sync.
CLEAN = (
    *(("best", "all", 128), ("best", "causal", 128), ("best_causal", "causal", 128)),
    ("experiments/p_shared/block_N_192", "causal", 64),
    *((name, mask, head_dim(name)) for name in TOP for mask in ("all", "causal")),
)


@pytest.mark.gpu
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name,mask,size", CLEAN)
def test_the_fastest_kernels_are_clean(tool, name, mask, size):
    check_clean(tool, "-c", PROGRAM, SCHEDULES / f"{name}.yaml", mask, size)


@pytest.mark.gpu
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("size", [1, 16, 64, 128])
def test_keys_in_pages_are_clean(tool, size):
    check_clean(tool, "-c", PAGED, size)


def compiled(name: str, schedule: str) -> None:
    """Compiles a kernel into the disk cache, in a process of its own."""
    of_variant = kernel(name, schedule)
    kernel_of(of_variant.scheduled, of_variant.variant)


@pytest.mark.gpu
@pytest.mark.alone
def test_each_variant_is_clean_in_both_lowerings():
    variants = list(product(VARIANTS, OF_VARIANTS))
    processes = min(MOST_PROCESSES, os.cpu_count() or 1)
    with ProcessPool(processes, context=multiprocessing.get_context("spawn")) as pool:
        for future in [pool.schedule(compiled, variant, timeout=300) for variant in variants]:
            future.result()
    program = Path(__file__).with_name("sanitized_cases.py")
    runs = list(product(TOOLS, OF_VARIANTS))
    with ThreadPoolExecutor(len(runs)) as threads:
        answers = threads.map(lambda run: sanitized(run[0], program, run[1]), runs)
    said = dict(zip(runs, answers))
    if any("Device not supported" in words for words in said.values()):
        pytest.skip("compute-sanitizer does not work on this machine")
    found = [line for run, words in said.items() for line in faults(run[0], words)]
    assert not found, "\n".join(found)


def faults(tool: str, said: str) -> Iterator[str]:
    """Says what is wrong with a run of all variants."""
    missing = [name for name in VARIANTS if f"it ran: {name}\n" not in said]
    if missing or not is_clean(tool, said):
        yield f"{tool}: did not run: {missing}\n{said[-4000:]}"


def test_each_variant_is_a_kernel_of_its_own_and_its_case_runs_it():
    kernels = {(kernel(*of).scheduled, kernel(*of).variant) for of in product(VARIANTS, OF_VARIANTS)}
    assert len(kernels) == len(VARIANTS) * len(OF_VARIANTS)
    for of in product(VARIANTS, OF_VARIANTS):
        refuse_unless_safe(Planned(kernel(*of).scheduled), kernel(*of).size)
        lengths = case(*of).seq_q, case(*of).seq_kv
        assert kernel(*of).runs(*lengths) and case(*of).launches
        assert not any(length % tile == 0 for length in lengths for tile in (64, 80, 96, 112, 128, 144, 176, 192))


def test_the_program_calls_attention(on_cpu: Kernels, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor: tensor)
    for of in product(VARIANTS, OF_VARIANTS):
        launch(*of)
    assert on_cpu.asked == {(kernel(*of).scheduled, kernel(*of).variant) for of in product(VARIANTS, OF_VARIANTS)}
