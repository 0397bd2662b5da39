"""This module finds the GPUs that CUDA shows to this process."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from tl_attention.problem.card import CARDS, HOPPER, Card, known_card

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR and _MULTIPROCESSOR_COUNT
CAPABILITY_MAJOR, CAPABILITY_MINOR, SMS = 75, 76, 16


class VisibleGpu(NamedTuple):
    """A VisibleGpu is a GPU that CUDA shows to this process."""

    uuid: str  # as NVML spells it
    name: str
    capability: tuple[int, int]  # its compute capability
    sms: int = HOPPER.sms

    @property
    def card(self) -> Card | None:
        """Returns which of the known cards the GPU is; None for another."""
        return known_card(self.capability)


def visible_gpus() -> tuple[VisibleGpu, ...]:
    """Returns the GPUs that CUDA_VISIBLE_DEVICES leaves, device 0 first; none where CUDA does not work.

    It asks the driver's library: torch takes seconds.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ()
    count, device, number = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    uuid, name = (ctypes.c_ubyte * 16)(), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()

    def attribute(which: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(number), which, device)
        return number.value

    found = []
    for ordinal in range(count.value):
        failed = driver.cuDeviceGet(ctypes.byref(device), ordinal) or driver.cuDeviceGetUuid_v2(uuid, device)
        if failed or driver.cuDeviceGetName(name, len(name), device):
            return ()
        capability = attribute(CAPABILITY_MAJOR), attribute(CAPABILITY_MINOR)
        found.append(VisibleGpu(f"GPU-{UUID(bytes=bytes(uuid))}", name.value.decode(), capability, attribute(SMS)))
    return tuple(found)


@functools.cache
def card_at_hand() -> Card:
    """Returns the card of this process's first GPU, with its own number of SMs, or HOPPER if no known GPU is there.

    It is an H100 (SXM) where there is no GPU, or an unknown one.
    """
    for gpu in visible_gpus()[:1]:
        if gpu.card is not None:
            return replace(gpu.card, sms=gpu.sms)
    return HOPPER


def card_of_arch(arch: str) -> Card:
    """Returns the card that this arch is compiled for, with the SMs of the GPU at hand if that is such a card."""
    here = card_at_hand()
    return here if arch == here.arch else CARDS[arch]


def another_gpu(arch: str) -> VisibleGpu | None:
    """Returns this process's first GPU where it is another card than this arch's; else None.

    What is compiled for the arch may not be launched on that GPU.
    """
    return next((gpu for gpu in visible_gpus()[:1] if gpu.card is None or gpu.card.arch != arch), None)
