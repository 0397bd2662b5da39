"""What the proof of generated code leaves to the numbers: a fault of each kind passes the proof, and the GPU shows it."""

from __future__ import annotations

import multiprocessing
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.on_gpu import RIGHT, run
from generated_faults import KERNELS, Edits, lowered, read, replaced
from machine_code import cubin
from pebble import ProcessPool

# By the kind of the line: the kernel, what stands in its code, and what in its place.
FAULTS: dict[str, tuple[str, Edits]] = {
    "arithmetic": ("best", ((r"(__14\.y = )\(__15\.y-v__15\.y\)", r"\1(__15.y+v__15.y)"),)),
    "mask": ("best", ((r"(\(\(seq_kv \+ 176\) - \(blocks_3 \* 176\)\)) <= ", r"\1 < "),)),
    "layout": ("seed", ((r"(desc_b_2 \+ \(\(ki_2 \* )2048", r"\g<1>1024"),)),
    "declaration": ("seed", ((r"(broadcast_var_2 = )0x0p\+0f", r"\g<1>0x1p+0f"),)),
}


def changed(kind: str):
    kernel, edits = FAULTS[kind]
    code = lowered(KERNELS[kernel])
    return KERNELS[kernel].schedule, replace(code, source=replaced(code.source, edits))


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_the_numbers_passes_the_proof(kind):
    read(*changed(kind))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", FAULTS)
def test_the_numbers_show_it(kind):
    source = changed(kind)[1].source
    with ProcessPool(1, context=multiprocessing.get_context("spawn")) as pool:
        result = pool.schedule(run, [FAULTS[kind][0], source, cubin(source), 60.0], timeout=180).result()
    assert result.outcome != RIGHT
