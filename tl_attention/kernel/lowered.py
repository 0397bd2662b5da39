"""Holds the Program to the loop as TileLang lowered it: ring buffers and trips of the steady state.

Read off the generated CUDA, which is what runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

from tl_attention.errors import InputError
from tl_attention.program import Program
from tl_attention.statements import RING

SHARED = re.compile(r"void\* (\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);")
LOOP = re.compile(r"^  for \(int (\w+) = 0; \1 < (.+); \+\+\1\) \{$", re.MULTILINE)


@dataclass(frozen=True)
class LoweredLoop:
    """Buffers of each ring, and the trip count of the steady state as a C expression over the runtime sizes."""

    buffers: dict[str, int]
    trips: str

    def trips_at(self, **sizes: int) -> int:
        """The steady state's trips for the first row tile, at the given seq_q and seq_kv."""
        return int(eval(self.trips.replace("((int)blockIdx.x)", "0"), {"min": min, "max": max}, dict(sizes)))


def lowered_loop(source: str, shared_bytes: int, slot_bytes: Mapping[str, int]) -> LoweredLoop:
    """Read the loop off the generated source. `slot_bytes` gives the size of one buffer of each ring."""
    starts = {name: int(offset) for name, offset in SHARED.findall(source)}
    ends = sorted([*starts.values(), shared_bytes])
    buffers = {
        RING[name]: (ends[ends.index(starts[name]) + 1] - starts[name]) // slot_bytes[name] for name in RING
    }
    loops = [
        (match[2], source[match.end():source.find("\n  }\n", match.end())]) for match in LOOP.finditer(source)
    ]
    steady = [trips for trips, body in loops if "wgmma_ss" in body and "wgmma_rs" in body]
    assert steady, "no loop of the generated code holds both products"
    return LoweredLoop(buffers, steady[0])


def check_lowered(program: Program, loop: LoweredLoop, label: str) -> None:
    """Raise InputError where the kernel is not what the Program says."""
    for load, expected in program.buffers.items():
        if loop.buffers[load] != expected:
            raise InputError(
                f"{label}: TileLang made {loop.buffers[load]} buffers for {load}, the Program has {expected}: "
                "the proof does not hold for this kernel"
            )
