"""Which GPUs are there."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from tl_attention.hardware.card import CARDS, HOPPER, Card, known_card

# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR and _MULTIPROCESSOR_COUNT
CAPABILITY_MAJOR, CAPABILITY_MINOR, SMS = 75, 76, 16


class VisibleGpu(NamedTuple):
    """A GPU that CUDA shows to this process: its UUID as NVML spells it, its name, its compute capability, its SMs."""

    uuid: str
    name: str
    capability: tuple[int, int]
    sms: int = HOPPER.sms

    @property
    def card(self) -> Card | None:
        """Which of the known cards it is; None for another."""
        return known_card(self.capability)


def visible_gpus() -> tuple[VisibleGpu, ...]:
    """Those that CUDA_VISIBLE_DEVICES leaves, device 0 first. Asked of the driver's library: torch takes seconds."""
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
    """The card of this process's first GPU, with its own number of SMs; an H100 (SXM) where there is none, or another."""
    for gpu in visible_gpus()[:1]:
        if gpu.card is not None:
            return replace(gpu.card, sms=gpu.sms)
    return HOPPER


def card_of_arch(arch: str) -> Card:
    """The card that is compiled for by this arch, with the SMs of the GPU at hand if it is that."""
    here = card_at_hand()
    return here if arch == here.arch else CARDS[arch]


def another_gpu(arch: str) -> VisibleGpu | None:
    """This process's first GPU where it is another card: what is compiled for this arch may not be launched on it."""
    return next((gpu for gpu in visible_gpus()[:1] if gpu.card is None or gpu.card.arch != arch), None)
