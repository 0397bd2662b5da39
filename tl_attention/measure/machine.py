"""What all rows of a run have in common: its time, and the compilers, the software and the GPU of this machine."""

from __future__ import annotations

import datetime
import platform
from contextlib import suppress
from typing import Any

from tl_attention.build.toolchain import check_cache, chosen
from tl_attention.errors import InputError
from tl_attention.hardware.card import KNOWN, card_of
from tl_attention.hardware.device import card_at_hand, visible_gpus
from tl_attention.measure.environment import commit, gpu, software


def machine_fields(arch: str | None = None) -> dict[str, Any]:
    """The fields of a row that say where it was measured, and in which run, by name; the device's is the worker's to tell.

    `arch` is that of the card to compile for, by default the one at hand. Asked before minutes of compiling: raises
    InputError where no nvcc can compile, where others may write to the cache, or, unless an arch is asked for, where the GPU is no card that is known.
    """
    versions, known = software(), gpu()
    nvcc = chosen(versions.get("cuda"))
    check_cache(nvcc.cache)
    if arch is None and "cuda" in versions:
        for found in visible_gpus()[:1]:
            card_of(found.capability, found.name)
    return {
        "run": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "arch": arch or card_at_hand().arch,
        "nvcc": nvcc.version,
        "ptxas": nvcc.ptxas,
        "commit": commit(),
        "versions": versions,
        "driver": known.driver if known else "unknown",
        "power_limit_w": known.power_limit_w if known else None,
    }


def gpu_fields(what: str) -> dict[str, Any]:
    """The same with the device, where this process itself measures `what`. Raises InputError where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise InputError(f"{what}: no GPU here, expected one of compute capability {KNOWN}")
    return {"device": torch.cuda.get_device_name(0), **machine_fields()}


def machine_text(device: str) -> dict[str, str]:
    """The GPU of "cuda" or the processor of "cpu", versions, commit, driver, power limit and compilers, as text.

    What is not known is left out, the compilers where no nvcc can compile.
    """
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    found = {"device_name": name, **software(), "commit": commit() or ""}
    if device == "cuda" and (known := gpu()):
        found |= {"driver": known.driver, "power_limit_w": f"{known.power_limit_w:.0f}" if known.power_limit_w else ""}
    with suppress(InputError):
        nvcc = chosen(torch.version.cuda)
        found |= {"nvcc": nvcc.version, "ptxas": nvcc.ptxas}
    return {key: value for key, value in found.items() if value}
