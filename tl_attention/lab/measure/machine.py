"""A record says what its run ran with: the time, versions of compilers and software, the commit, the GPU and driver."""

from __future__ import annotations

import datetime
import functools
import platform
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tl_attention import __version__
from tl_attention.compiler.store import FOLDER
from tl_attention.compiler.toolchain import check_cache, chosen_nvcc
from tl_attention.errors import InputError
from tl_attention.lab.measure.device import card_at_hand, visible_gpus
from tl_attention.problem.card import KNOWN, card_of

CHECKOUT = Path(__file__).parents[3]
# What a kernel and its times follow from. Records, pages and what lies beside them do not count.
MEASURED = ("tl_attention", "schedules", "tools")


@dataclass(frozen=True)
class Gpu:
    """A `Gpu` holds what NVML says of a GPU."""

    name: str
    driver: str  # its version
    cuda: str  # the newest that the driver runs, such as 13.0
    power_limit_w: float | None  # None where NVML does not tell


def software() -> dict[str, str]:
    """Returns the versions of this package, torch, TileLang, Python, CUDA and cuDNN, by name.

    CUDA and cuDNN are those that torch is built for. Imports torch, but not TileLang, which takes another second.
    """
    import torch

    versions = {
        "tl-attention": __version__,
        "torch": str(torch.__version__),
        "tilelang": package("tilelang") or "none",
        "python": sys.version.split()[0],
    }
    if torch.version.cuda:
        versions |= {"cuda": torch.version.cuda, "cudnn": str(torch.backends.cudnn.version())}
    return versions


def package(name: str) -> str | None:
    """Returns the version of an installed package, None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def commit() -> str | None:
    """Returns the checkout's commit, None where the package is no checkout.

    If files of MEASURED differ from the commit, the first one is told: `c0f9511a2b3c, changed: schedules/best.yaml`.
    """
    if not (CHECKOUT / ".git").exists():
        return None
    head = _git("rev-parse", "--short=12", "HEAD")
    files = _git("diff", "--name-only", "HEAD", "--", *MEASURED)
    files = files or _git("ls-files", "--others", "--exclude-standard", "--", *MEASURED)
    return f"{head}, changed: {files.splitlines()[0]}" if head and files else head or None


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@functools.cache
def gpu() -> Gpu | None:
    """Returns the first GPU that CUDA shows this process, or else NVML's first; None where NVML does not answer."""
    import pynvml

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            visible, first = visible_gpus(), pynvml.nvmlDeviceGetHandleByIndex
            # NVML counts GPUs that CUDA_VISIBLE_DEVICES hides.
            handle = pynvml.nvmlDeviceGetHandleByUUID(visible[0].uuid) if visible else first(0)
            cuda, power_limit_w = pynvml.nvmlSystemGetCudaDriverVersion_v2(), None
            with suppress(pynvml.NVMLError):
                power_limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
            return Gpu(
                pynvml.nvmlDeviceGetName(handle),
                pynvml.nvmlSystemGetDriverVersion(),
                f"{cuda // 1000}.{cuda % 1000 // 10}",
                power_limit_w,
            )
        finally:
            pynvml.nvmlShutdown()
    return None


def machine_fields(arch: str | None = None) -> dict[str, Any]:
    """Returns the fields of a row for the run's time, arch, compilers, commit, versions, driver and power limit.

    The worker adds the device. `arch` is the arch of the card to compile for, by default the card at hand. Commands ask
    before minutes of compiling. Raises InputError where no nvcc can compile, where others may write to the cache, or,
    unless an arch is given, where the GPU is no known card.
    """
    versions, known = software(), gpu()
    nvcc = chosen_nvcc(versions.get("cuda"))
    check_cache(nvcc.cache, FOLDER)
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
    """Returns a row's machine fields and the GPU's name as `device`, or raises InputError if there is no GPU.

    They are for a process that measures on the GPU itself. The error begins with `what`.
    """
    import torch

    if not torch.cuda.is_available():
        raise InputError(f"{what}: no GPU here, expected one of compute capability {KNOWN}")
    return {"device": torch.cuda.get_device_name(0), **machine_fields()}


def machine_text(device: str) -> dict[str, str]:
    """Returns by name, as text, the GPU's or CPU's name, versions, commit, driver, power limit and compilers.

    The name is the GPU's for "cuda", else the processor's. Values that are not known are left out, the compilers where
    no nvcc can compile.
    """
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    found = {"device_name": name, **software(), "commit": commit() or ""}
    if device == "cuda" and (known := gpu()):
        found |= {"driver": known.driver, "power_limit_w": f"{known.power_limit_w:.0f}" if known.power_limit_w else ""}
    with suppress(InputError):
        nvcc = chosen_nvcc(torch.version.cuda)
        found |= {"nvcc": nvcc.version, "ptxas": nvcc.ptxas}
    return {key: value for key, value in found.items() if value}
