"""`examine` says what this machine has of what `run` needs, and which command mends what is missing.

Each fact is a line.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tl_attention import __version__
from tl_attention.compiler import toolchain
from tl_attention.compiler.compiler_errors import first_error
from tl_attention.compiler.store import FOLDER, SUFFIX
from tl_attention.compiler.toolchain import Nvcc
from tl_attention.errors import InputError
from tl_attention.lab.machine_code.nvcc import call_nvcc
from tl_attention.lab.machine_code.sass import TOOLS, tool
from tl_attention.lab.measure.device import card_at_hand, visible_gpus
from tl_attention.lab.measure.machine import commit, gpu, package
from tl_attention.launch.launcher import NOT_BUILT
from tl_attention.problem.card import HOPPER, card_of
from tl_attention.schedule.files.backward import backward_rules, cudnn_versions

# What generated kernels include: by wgmma and TMA on Hopper, by mma.sync and cp.async on the others.
ON_HOPPER, ELSEWHERE = ("instruction/wgmma", "copy_sm90", "reduce"), ("instruction/mma", "ldsm", "copy", "reduce")
TRIAL_TIMEOUT_S = 300
UNKNOWN = "unknown: NVML does not answer"


@dataclass(frozen=True)
class Fact:
    """A fact names a thing that `run` needs and its value on this machine."""

    name: str
    value: str
    # Both name a command where there is one.
    fault: str = ""  # why `run` would fail
    hint: str = ""  # what could be better


def examine() -> Iterator[Fact]:
    """Yields a fact for each thing that `run` needs here, such as torch, GPU, driver, compilers and cache.

    The facts come in the order in which they depend on each other. Imports torch and TileLang, and runs nvcc.
    """
    checkout = commit()
    yield Fact("tl-attention", f"{__version__}, commit {checkout}" if checkout else __version__)
    yield Fact("Python", f"{sys.version.split()[0]}, {sys.executable}")
    torch_cuda, fact = _torch()
    yield fact
    yield _tilelang()
    yield from _gpu(torch_cuda)
    # Torch's own line says that it is refused; the compilers' lines need not repeat it.
    yield from _compilers(None if fact.fault else torch_cuda)
    yield _launcher()
    yield from map(_disassembler, TOOLS)
    yield _cache()
    yield from _gradients()


def _torch() -> tuple[str | None, Fact]:
    try:
        import torch
    except Exception as error:  # A torch that is installed can fail on its own libraries, in many ways.
        return None, Fact("torch", _one_line(error), fault="torch cannot be imported: pip install torch")
    cuda = torch.version.cuda
    found = f"{torch.__version__}, {f'CUDA {cuda}' if cuda else 'built without CUDA'}"
    return cuda, Fact("torch", found, fault=toolchain.torch_fault(cuda))


def _tilelang() -> Fact:
    found = f"{package('tilelang') or 'none'}, apache-tvm-ffi {package('apache-tvm-ffi') or 'none'}"
    try:
        import tilelang  # noqa: F401
    except Exception as error:
        return Fact("TileLang", found, fault=f"it cannot be imported ({_one_line(error)}), {toolchain.SEE_EXTRA}")
    return Fact("TileLang", found)


def _gpu(torch_cuda: str | None) -> Iterator[Fact]:
    known = gpu()
    limit = f", power limit {known.power_limit_w:.0f} W" if known and known.power_limit_w else ""
    driver = f"{known.driver}, runs CUDA up to {known.cuda}{limit}" if known else UNKNOWN
    try:
        import torch

        seen = torch.cuda.is_available()
    except Exception:
        seen = False
    if not seen:
        hint = "kernels are compiled and checked on the CPU; nothing is timed"
        if known and torch_cuda is None:
            hint = f"torch is built without CUDA, so {known.name} stays unused: pip install torch from the registry"
        elif known:
            hint = f"torch sees no GPU, NVML has {known.name}: the driver may be too old for CUDA {torch_cuda}"
        yield Fact("GPU", "none that torch can use" if known else "none", hint=hint)
    else:
        name, capability = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
        fault = refusal(card_of, capability, name)
        yield Fact("GPU", f"{name}, compute capability {capability[0]}.{capability[1]}", fault=fault)
    yield Fact("driver", driver)


def _compilers(torch_cuda: str | None) -> Iterator[Fact]:
    host = toolchain.host_compiler()
    yield Fact("C++ compiler", host or "none", fault="" if host else toolchain.NO_HOST_COMPILER)
    try:
        nvcc = toolchain.chosen_nvcc(torch_cuda)
    except InputError as error:
        yield Fact("nvcc", "none that can compile", fault=str(error).removesuffix(toolchain.SEE_DOCTOR))
        return
    known = gpu()
    fault = hint = ""
    if torch_cuda and visible_gpus() and known and toolchain.major(nvcc.release) > toolchain.major(known.cuda):
        mending = toolchain.remedy(torch_cuda)
        if toolchain.major(torch_cuda) > toolchain.major(known.cuda):
            mending = f"install a driver for CUDA {toolchain.major(torch_cuda)} or newer, which torch needs too"
        fault = f"the driver runs CUDA up to {known.cuda}, not machine code of {nvcc.release}: {mending}"
    elif torch_cuda and nvcc.release != torch_cuda:
        hint = f"torch is built for CUDA {torch_cuda}: {toolchain.remedy(torch_cuda)}"
    yield Fact("nvcc", f"{nvcc.version}, ptxas {nvcc.ptxas}, from {nvcc.source}: {nvcc.home}", fault, hint)
    for other in toolchain.nvccs():
        if other != nvcc:
            why = f" ({other.fault})" if other.fault else ""
            yield Fact("", f"not used: {other.version}, {other.source}: {other.home}{why}")
    if host:
        yield _trial(nvcc)


def _trial(nvcc: Nvcc) -> Fact:
    """Compiles a kernel's headers with this nvcc: a toolkit that is incomplete, or mixed, fails here and not before."""
    if _tilelang().fault:
        return Fact("compiles", "not tried: TileLang cannot be imported")
    started, arch = time.monotonic(), card_at_hand().arch
    headers = ON_HOPPER if arch == HOPPER.arch else ELSEWHERE
    includes = "\n".join(f"#include <tl_templates/cuda/{header}.h>" for header in headers)
    try:
        done = call_nvcc(nvcc, f"{includes}\n__global__ void trial() {{}}\n", arch, TRIAL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Fact("compiles", "no", fault=f"nvcc took more than {TRIAL_TIMEOUT_S} s for a small kernel")
    if done.returncode:
        why = first_error(done.stdout + done.stderr)
        return Fact("compiles", "no", fault=f"{why}; the toolkit may be incomplete: {toolchain.remedy(nvcc.release)}")
    return Fact("compiles", f"yes, the headers of a kernel in {time.monotonic() - started:.1f} s")


def _launcher() -> Fact:
    try:
        from tl_attention.launch import _launcher
    except ImportError:
        return Fact("launcher", "not built", fault=NOT_BUILT)
    return Fact("launcher", f"built: {_launcher.__file__}")


def _disassembler(name: str) -> Fact:
    try:
        return Fact(name, tool(name))
    except InputError as error:
        return Fact(name, "none", fault=str(error))


def _gradients() -> Iterator[Fact]:
    """Yields which operators compute gradients here, where torch can use a GPU; it tries none."""
    try:
        import torch

        from tl_attention.compiler.compile import why_none_is_made
        from tl_attention.op import trial

        if torch.cuda.is_available():
            why = trial.why_not(torch.device("cuda", 0), cudnn_versions(), may_run=False)
            fast = [] if why else [f"cuDNN {trial.cudnn_version()} where a rule names it"]
            pairs = list(dict.fromkeys(rule.words for rule in backward_rules().rules if rule.schedules))
            none_made = why_none_is_made() if pairs else ""
            ours = [f"{pair} where a rule names it{' and its kernels ship' if none_made else ''}" for pair in pairs]
            hints = [
                why and f"not by cuDNN: {why}",
                none_made and f"kernels that do not ship are not made: {none_made}",
            ]
            operators = ", else ".join([*ours, *fast, "FlashAttention-2"])
            yield Fact("gradients", f"by {operators}", hint="; ".join(filter(None, hints)))
    except Exception as error:  # What torch lacks has a line of its own.
        yield Fact("gradients", _one_line(error))


def _cache() -> Fact:
    folder = toolchain.cache_folder()
    made = sorted(path.name for path in folder.glob("nvcc-*") if path.is_dir())
    kept = [path for name in (*made, FOLDER) for path in (folder / name).rglob("*") if path.is_file()]
    finished = sum(path.suffix == SUFFIX for path in kept)
    by = f" by {', '.join(made)}, {finished} kernels finished" if made else ""
    size = sum(path.stat().st_size for path in kept)
    return Fact("cache", f"{folder}, {size / 1e6:.0f} MB{by}", refusal(toolchain.check_cache, *made, FOLDER))


def refusal(check: Callable[..., object], *given: Any) -> str:
    """Returns why a check refuses what is given, "" if it does not."""
    try:
        check(*given)
    except InputError as error:
        return str(error)
    return ""


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
