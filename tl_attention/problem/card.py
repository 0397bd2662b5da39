"""Kernels are compiled for these cards. A Card says what a kernel may use of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from tl_attention.errors import InputError
from tl_attention.problem.mask import ceildiv
from tl_attention.problem.warpgroup import WARP

Arch = Literal["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"]
ARCHS: tuple[Arch, ...] = get_args(Arch)
KIB = 1024
# An SM's partitions: each has a share of its registers, and gives these to a warp's threads together.
PARTITIONS, REGISTERS_OF_A_WARP = 4, 256
SHARED_GRANULE = 128


@dataclass(frozen=True)
class Card:
    """A Card describes a GPU as kernels see it, by its number of SMs and the limits of one SM.

    Sources: CUDA C++ Programming Guide, technical specifications per compute capability; cuda_occupancy.h of the CUDA
    toolkit for how registers and shared memory are given out; the GPUs' data sheets for the SMs.
    """

    arch: Arch  # what the compiler is asked for
    name: str  # the GPUs that code for `arch` runs on
    capability: tuple[int, int]
    sms: int  # SMs of the largest of these GPUs
    shared_bytes_per_sm: int
    shared_bytes_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    shared_bytes_reserved: int = KIB  # of each block's shared memory, kept by the system
    registers_per_sm: int = 65_536
    registers_per_thread: int = 255
    registers_granule: int = 8

    def __str__(self) -> str:
        return f"{self.arch} ({self.name})"

    def shared_available(self, blocks: int = 1) -> int:
        """Returns the bytes of shared memory that each block may have when so many blocks are on the SM."""
        return min(self.shared_bytes_per_sm // blocks - self.shared_bytes_reserved, self.shared_bytes_per_block)

    def registers_available(self, threads: int, blocks: int = 1) -> int:
        """Returns how many registers each thread may have when `blocks` blocks of `threads` threads are on the SM."""
        share = self.registers_per_sm // (threads * blocks) // self.registers_granule * self.registers_granule
        return min(share, self.registers_per_thread)

    def blocks_that_fit(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Returns how many blocks of so many threads an SM holds at once; 0 if not even one.

        Each thread has so many `registers`. `shared_bytes` are a block's own, static and dynamic, without what the
        system keeps.
        """
        if shared_bytes > self.shared_bytes_per_block:
            return 0
        warps = ceildiv(threads, WARP)
        of_a_warp = ceildiv(registers * WARP, REGISTERS_OF_A_WARP) * REGISTERS_OF_A_WARP
        by_registers = self.registers_per_sm // PARTITIONS // of_a_warp * PARTITIONS // warps
        taken = ceildiv(shared_bytes + self.shared_bytes_reserved, SHARED_GRANULE) * SHARED_GRANULE
        by_threads = self.threads_per_sm // (warps * WARP)
        return min(by_registers, self.shared_bytes_per_sm // taken, by_threads, self.blocks_per_sm)

    def warps_per_sm(self, threads: int, registers: int, shared_bytes: int) -> int:
        """Returns how many warps an SM holds at once, in the blocks that fit.

        Tables of kernels call this number the occupancy.
        """
        return self.blocks_that_fit(threads, registers, shared_bytes) * ceildiv(threads, WARP)


CARDS: dict[str, Card] = {
    card.arch: card
    for card in (
        Card("sm_80", "A100", (8, 0), 108, 164 * KIB, 163 * KIB, 2048, 32),
        Card("sm_86", "RTX 3090", (8, 6), 82, 100 * KIB, 99 * KIB, 1536, 16),
        Card("sm_89", "RTX 4090", (8, 9), 128, 100 * KIB, 99 * KIB, 1536, 24),
        Card("sm_90a", "H100, H200", (9, 0), 132, 228 * KIB, 227 * KIB, 2048, 32),
        Card("sm_120", "RTX 5090", (12, 0), 170, 100 * KIB, 99 * KIB, 1536, 24),
    )
}
# What is meant where no card is named, and there is no GPU.
HOPPER = CARDS["sm_90a"]
_BY_CAPABILITY = {card.capability: card for card in CARDS.values()}
KNOWN = ", ".join(f"{major}.{minor} ({card.name})" for (major, minor), card in _BY_CAPABILITY.items())


def known_card(capability: tuple[int, int]) -> Card | None:
    """Returns the card of this compute capability; None where it is not known.

    The machine code of one capability is not taken to run on the next.
    """
    return _BY_CAPABILITY.get(capability)


def card_of(capability: tuple[int, int], name: str) -> Card:
    """Returns the Card of this compute capability, or raises InputError with the GPU's name and the known cards."""
    card = known_card(capability)
    if card is None:
        major, minor = capability
        raise InputError(f"device: {name} has compute capability {major}.{minor}, expected one of {KNOWN}")
    return card
