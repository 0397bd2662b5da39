"""What the kernels may use of the GPU, and which GPUs are there."""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from tl_attention.errors import InputError


@dataclass(frozen=True)
class DeviceSpec:
    """The SMs of an H100 or H200 (SXM), and the limits of one. Of each block's shared memory the system keeps a part.

    Source: CUDA C++ Programming Guide, technical specifications per compute capability (9.0).
    """

    sms: int = 132
    shared_bytes_per_sm: int = 233_472
    shared_bytes_reserved: int = 1_024
    registers_per_sm: int = 65_536
    registers_per_thread: int = 255
    registers_granule: int = 8

    def shared_available(self, blocks: int = 1) -> int:
        """Bytes of shared memory that each block may have when so many are on the SM."""
        return self.shared_bytes_per_sm // blocks - self.shared_bytes_reserved

    def registers_available(self, threads: int, blocks: int = 1) -> int:
        """Registers that each thread of a block may have when so many blocks are on the SM."""
        share = self.registers_per_sm // (threads * blocks) // self.registers_granule * self.registers_granule
        return min(share, self.registers_per_thread)


HOPPER = DeviceSpec()
CAPABILITY = 9, 0
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR and _MULTIPROCESSOR_COUNT
CAPABILITY_MAJOR, CAPABILITY_MINOR, SMS = 75, 76, 16


def require_hopper(capability: tuple[int, int], name: str) -> None:
    """Raise unless the device is of compute capability 9.0."""
    if capability != CAPABILITY:
        major, minor = capability
        raise InputError(
            f"device: {name} has compute capability {major}.{minor}, expected 9.0 (H100, H200): "
            "the kernels use wgmma, which only sm_90a has"
        )


class VisibleGpu(NamedTuple):
    """A GPU that CUDA shows to this process: its UUID as NVML spells it, its name, its compute capability, its SMs."""

    uuid: str
    name: str
    capability: tuple[int, int]
    sms: int = HOPPER.sms


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
def sms_at_hand() -> int:
    """How many SMs this process's first GPU has; those of an H100 (SXM) where that is none of Hopper's, or there is none."""
    return next((gpu.sms for gpu in visible_gpus()[:1] if gpu.capability == CAPABILITY), HOPPER.sms)
