"""Compiles a schedule's kernel for sm_90a and reports what came out. Needs nvcc, no GPU."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tl_attention.build.compiler_errors import telling_line
from tl_attention.build.launch import launch_of
from tl_attention.build.sass import Loop, check_not_serialised, cuobjdump, read_loops
from tl_attention.build.toolchain import Nvcc, in_force
from tl_attention.build.verdicts import verdict_of
from tl_attention.errors import InputError
from tl_attention.lowering.base import FAST_MATH
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.head_dims import check_head_dim
from tl_attention.problem.variant import KERNEL_PARAMETERS, Parameter, Variant
from tl_attention.program.derivation import derive
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule

TARGET = {"kind": "cuda", "arch": "sm_90a"}
# What a variant may ask for: a counter is its schedule's.
OPTIONAL = frozenset(p.name for p in KERNEL_PARAMETERS if p.optional and p.kind != "counter")


def fingerprint(source: str) -> str:
    """The name of generated device code, as rows and packed submissions have it."""
    return hashlib.sha256(source.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class StaticReport:
    """What ptxas gave one kernel: registers per thread, bytes per thread of stack (spills), bytes per block, loops."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    loops: tuple[Loop, ...] = ()

    def __str__(self) -> str:
        spills = f"{self.stack_bytes} bytes of spills" if self.stack_bytes else "no spills"
        return f"{self.registers} registers, {spills}, {self.shared_bytes:,} bytes of shared memory"


@dataclass(frozen=True)
class CompiledKernel:
    """A compiled kernel, and what it takes. `nvcc` made its machine code.

    `verdict` is the proof's on its generated code, None for a schedule without a Program.
    """

    kernel: Any
    source: str
    host_source: str
    nvcc: Nvcc
    variant: Variant
    parameters: tuple[Parameter, ...]
    verdict: Verdict | None

    def __call__(self, **arguments: Any) -> None:
        """Launch it on the current CUDA stream. `arguments` go by the parameters' names, without the counter."""
        self.launch(*(arguments[p.name] for p in self.parameters if p.kind != "counter"))

    @cached_property
    def launch(self) -> Callable[..., None]:
        """The same, with arguments in the order of the parameters."""
        return launch_of(self.kernel, self.parameters)

    @cached_property
    def generated(self) -> GeneratedCode:
        """What the proof of the generated code reads."""
        return GeneratedCode(self.source, self.host_source, self.variant, self.parameters)

    @property
    def fingerprint(self) -> str:
        """Names the generated device code: schedules that share it are the same kernel."""
        return fingerprint(self.source)

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of one block, off the launch."""
        return self.generated.shared_bytes

    @cached_property
    def cubin(self) -> bytes:
        """The machine code, from TileLang's binary cache or built again."""
        from tilelang.cuda.backend import tilelang_callback_cuda_compile
        from tvm.target import Target

        with in_force():
            return bytes(tilelang_callback_cuda_compile(self.source, Target(TARGET), {FAST_MATH: True}))

    @cached_property
    def report(self) -> StaticReport:
        """Registers, spills and loops read off the cubin, shared memory off the launch.

        Raises ScheduleRefused for serialised products. Not in `compile_kernel`: such a kernel is slow but right, and
        disassembling it would take half a second of each process that calls it.
        """
        usage = cuobjdump(self.cubin, "--dump-resource-usage")
        match = re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)", usage)
        assert match, f"cuobjdump printed no resource usage: {usage[:200]}"
        loops = read_loops(self.cubin)
        check_not_serialised(loops)
        return StaticReport(int(match[1]), int(match[2]), self.shared_bytes, loops)


def compile_kernel(schedule: Schedule, variant: Variant) -> CompiledKernel:
    """Compile the schedule's kernel, or take it from the disk cache of the nvcc that `toolchain.chosen` names.

    The schedule must have been checked. Raises InputError for a variant that no kernel computes, and with the
    compiler's error when it cannot be built; ScheduleRefused when what TileLang generated is not what the schedule
    says.
    """
    _check_supported(variant)
    import tilelang

    for chatty in ("tilelang", "tilelang.cache.kernel_cache"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    lowering = lowering_of(schedule)
    program = lowering.prim_func(lowering.arguments(schedule), variant)
    with in_force() as nvcc:
        try:
            kernel = tilelang.compile(
                program, target=TARGET, pass_configs=dict(lowering.pass_configs), execution_backend="tvm_ffi"
            )
        except Exception as error:  # TileLang raises many kinds; the user's question is always which schedule and why.
            raise InputError(f"{schedule.label}: TileLang cannot compile it: {telling_line(error)}") from error
    parameters = variant.parameters(*lowering.counters(schedule))
    code = GeneratedCode(kernel.get_kernel_source(), kernel.get_host_source(), variant, parameters)
    verdict = verdict_of(kernel, schedule, derive(schedule), code) if schedule.has_program else None
    return CompiledKernel(kernel, code.source, code.host_source, nvcc, variant, parameters, verdict)


def _check_supported(variant: Variant) -> None:
    """Raise InputError for what the interpreter can run, or a variant can say, and no kernel computes."""
    check_head_dim(variant.head_size)
    if min(variant.mask.left or 0, variant.mask.right or 0) < 0:
        raise InputError(f"{variant} is not supported, expected a window of at least 0")
    if variant.optional - OPTIONAL:
        raise InputError(
            f"{variant} is not supported, expected of what is optional {', '.join(sorted(OPTIONAL))} at most"
        )
