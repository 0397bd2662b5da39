"""What a run ran with: versions of the software, the commit, the GPU with its driver and power limit."""

from __future__ import annotations

import functools
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tl_attention import __version__
from tl_attention.hardware.device import visible_gpus

CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Gpu:
    """A GPU as NVML has it: its driver's version, the newest CUDA that this runs, such as 13.0, and the power limit in
    watts, None where NVML does not tell."""

    name: str
    driver: str
    cuda: str
    power_limit_w: float | None


def software() -> dict[str, str]:
    """Versions by name, as a row records them. Imports torch, but not TileLang, which takes another second."""
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
    """The version of an installed package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def commit() -> str | None:
    """The checkout's commit, `c0f9511a2b3c` or `c0f9511a2b3c, changed`; None where the package is no checkout."""
    if not (CHECKOUT / ".git").exists():
        return None
    head, changes = _git("rev-parse", "--short=12", "HEAD"), _git("status", "--porcelain")
    return f"{head}, changed" if head and changes else head or None


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(CHECKOUT), *arguments], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@functools.cache
def gpu() -> Gpu | None:
    """This process's first GPU, or NVML's where CUDA shows none; None where NVML does not answer."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        visible = visible_gpus()
        # NVML counts GPUs that CUDA_VISIBLE_DEVICES hides.
        handle = pynvml.nvmlDeviceGetHandleByUUID(visible[0].uuid) if visible else pynvml.nvmlDeviceGetHandleByIndex(0)
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return Gpu(
            pynvml.nvmlDeviceGetName(handle),
            pynvml.nvmlSystemGetDriverVersion(),
            f"{cuda // 1000}.{cuda % 1000 // 10}",
            _power_limit_w(handle),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _power_limit_w(handle: object) -> float | None:
    import pynvml

    try:
        return pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except pynvml.NVMLError:
        return None
