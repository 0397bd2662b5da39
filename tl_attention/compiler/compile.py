"""This module loads or compiles a schedule's kernel for a card. It needs nvcc, no GPU.

A kernel in the store is loaded without the modules that make and prove kernels, so these are imported late.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tl_attention.codeproof.verdict import GeneratedCode, Verdict
from tl_attention.compiler import store
from tl_attention.compiler.archive import shipped
from tl_attention.compiler.store import Finished, kernel_key
from tl_attention.compiler.toolchain import (
    SEE_EXTRA,
    NoCompiler,
    cache_enabled,
    cache_folder,
    check_host_compiler,
    chosen_nvcc,
    tilelang_folder,
)
from tl_attention.errors import InputError
from tl_attention.kernels.registry import parameters_of
from tl_attention.launch.launcher import function_of
from tl_attention.launch.memory import launch_of
from tl_attention.problem.features import Parameter
from tl_attention.problem.head_dims import check_head_dim
from tl_attention.problem.variant import GRADIENT_PARAMETERS, KERNEL_PARAMETERS, Variant
from tl_attention.schedule.schedule import Schedule

if TYPE_CHECKING:
    from tl_attention.program.planned import Planned

# The optional parameters that a variant may ask for. A schedule asks for the counter.
OPTIONAL = frozenset(
    p.name
    for p in (*KERNEL_PARAMETERS, *chain(*GRADIENT_PARAMETERS.values()))
    if p.optional and p.kind not in ("counter", "trace")
)


def fingerprint(source: str) -> str:
    """Returns the first 12 hex digits of the SHA-256 of generated device code, which name the kernel in records."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled kernel holds its generated code, variant, parameters, verdict and machine code."""

    source: str
    host_plan: str
    variant: Variant
    parameters: tuple[Parameter, ...]
    verdict: Verdict | None  # the proof's on the generated code, None for a schedule without a Program
    cubin: bytes = field(repr=False)  # the machine code

    def __call__(self, **arguments: Any) -> None:
        """Launches the kernel on the current CUDA stream, with arguments by the parameters' names.

        The counter is no argument.
        """
        self.launch(*(arguments[p.name] for p in self.parameters if p.kind != "counter"))

    @cached_property
    def launch(self) -> Callable[..., None]:
        """Returns a function that launches the kernel, with arguments in the order of the parameters.

        The counter is no argument.
        """
        function = function_of(self.generated.plan, self.cubin, self.variant, self.parameters)
        return launch_of(function, self.parameters)

    @cached_property
    def generated(self) -> GeneratedCode:
        """Returns the generated code and the host's plan with variant and parameters, as the proof reads them."""
        return GeneratedCode(self.source, self.host_plan, self.variant, self.parameters)

    @property
    def fingerprint(self) -> str:
        """Returns a short hash of the generated device code.

        Schedules that share the name are the same kernel.
        """
        return fingerprint(self.source)

    @property
    def shared_bytes(self) -> int:
        """Returns the bytes of dynamic shared memory of one block, read off the launch."""
        return self.generated.plan.shared_bytes


def compile_kernel(schedule: Schedule, variant: Variant, planned: Planned | None = None) -> CompiledKernel:
    """Returns the schedule's kernel, one that ships or from the store, or else compiled, proved and kept in the store.

    `planned` is the same schedule with its Program, from a caller that needs the Program as well.

    Raises InputError for a variant that no kernel computes, and with the compiler's error when the kernel cannot be
    built; ScheduleRefused for a schedule that is not safe, or when TileLang's code is not what the schedule says.
    """
    _check_supported(variant)
    parameters = parameters_of(schedule, variant)
    kernel, file = _shipped(schedule, variant), None
    if kernel is None and cache_enabled():
        file = store_file(schedule, variant)
        kernel = store.read(file)
    # A schedule without a Program has no proof.
    if kernel is None or (kernel.verdict is None) is schedule.has_program:
        if tilelang_folder() is None:
            of = f"head_dim {variant.head_size}, {variant.dtype}"
            raise InputError(
                f"no kernel ships for this call ({of}), and TileLang, which makes others, is not installed, {SEE_EXTRA}"
            )
        from tl_attention.compiler.generation import generate

        kernel = generate(schedule, variant, parameters, planned)
        if file:
            store.keep(file, kernel)
    return CompiledKernel(kernel.source, kernel.host_plan, variant, parameters, kernel.verdict, kernel.cubin)


def is_finished(schedule: Schedule, variant: Variant) -> bool:
    """Says whether the schedule's kernel for a variant ships, or is in the store as it would be made here."""
    if ships(schedule, variant):
        return True
    return cache_enabled() and store.read(store_file(schedule, variant)) is not None


def why_none_is_made() -> str:
    """Returns why no kernel can be compiled here, "" if compilers are there. TileLang is not imported."""
    import torch

    try:
        check_host_compiler()
        chosen_nvcc(torch.version.cuda)
    except InputError as error:
        return str(error)
    return "" if tilelang_folder() else f"TileLang is not installed, {SEE_EXTRA}"


def ships(schedule: Schedule, variant: Variant) -> bool:
    """Says whether the schedule's kernel for a variant ships with this package."""
    return _shipped(schedule, variant) is not None


def _shipped(schedule: Schedule, variant: Variant) -> Finished | None:
    """Returns the schedule's kernel that ships; None where none does, the cache is off, or another would be made."""
    archive = shipped() if cache_enabled() and not store.environment() else None
    body = archive.kernel(kernel_key(schedule, variant)) if archive else None
    return store.unpacked(body) if body else None


def store_file(schedule: Schedule, variant: Variant) -> Path:
    """Returns the path at which the store keeps the schedule's kernel for a variant, as it would be made here.

    Where no compiler is, the kernel may be any maker's. Raises InputError for a torch that is refused.
    """
    import torch

    folder, key = cache_folder() / store.FOLDER, kernel_key(schedule, variant)
    try:
        made_by = store.maker(chosen_nvcc(torch.version.cuda)) if tilelang_folder() else ""
    except NoCompiler:
        made_by = ""
    if not made_by and (found := store.kept(folder, key)):
        return found
    return folder / f"{key}-{made_by or 'none'}{store.SUFFIX}"


def _check_supported(variant: Variant) -> None:
    """Raises InputError for a head_dim, window or optional parameter of no kernel, which the interpreter may run."""
    check_head_dim(variant.head_size)
    if not variant.mask.names and min(variant.mask.left or 0, variant.mask.right or 0) < 0:
        raise InputError(f"{variant} is not supported, expected a window of at least 0")
    if variant.optional - OPTIONAL:
        raise InputError(
            f"{variant} is not supported, expected of what is optional {', '.join(sorted(OPTIONAL))} at most"
        )
