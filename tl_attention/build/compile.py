"""Compiles a schedule's kernel for sm_90a and reports what came out. Needs nvcc, no GPU."""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tl_attention.build.compiler_errors import telling_line
from tl_attention.build.sass import Loop, check_not_serialised, cuobjdump, read_loops
from tl_attention.build.tile_counter import tile_counter
from tl_attention.build.toolchain import Nvcc, in_force
from tl_attention.errors import InputError
from tl_attention.lowering.base import FAST_MATH
from tl_attention.lowering.registry import lowering_of
from tl_attention.program.derivation import derive
from tl_attention.proof.generated.host_plan import parse_host_source
from tl_attention.proof.generated.verdict import GeneratedCode
from tl_attention.schedule.schedule import Schedule

TARGET = {"kind": "cuda", "arch": "sm_90a"}


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
    """A compiled kernel; call `kernel(q, k, v, output, softmax_scale)`. `nvcc` made its machine code."""

    kernel: Any
    source: str
    host_source: str
    nvcc: Nvcc
    takes_counter: bool = False

    def __call__(self, *arguments: Any) -> None:
        self.kernel(*arguments, *([tile_counter(arguments[0].device)] if self.takes_counter else []))

    @property
    def fingerprint(self) -> str:
        """Names the generated device code: schedules that share it are the same kernel."""
        return fingerprint(self.source)

    @cached_property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of one block, off the launch."""
        return parse_host_source(self.host_source).shared_bytes

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


def compile_kernel(
    schedule: Schedule, *, head_dim: int, dtype: str, causal: bool, sizes: tuple[int, int, int, int] | None = None
) -> CompiledKernel:
    """Compile the schedule's kernel, or take it from the disk cache of the nvcc that `toolchain.chosen` names.

    `sizes` fixes (batch, heads, seq_q, seq_kv); without it one kernel serves all sizes. The schedule must have been
    checked. Raises InputError with the compiler's error when it cannot be built, and ScheduleRefused when what
    TileLang generated is not what the schedule says.
    """
    import tilelang

    for chatty in ("tilelang", "tilelang.cache.kernel_cache"):
        logging.getLogger(chatty).setLevel(logging.ERROR)
    lowering = lowering_of(schedule)
    program = lowering.prim_func(
        lowering.arguments(schedule), head_dim=head_dim, dtype=dtype, causal=causal, sizes=sizes
    )
    with in_force() as nvcc:
        try:
            kernel = tilelang.compile(
                program, target=TARGET, pass_configs=dict(lowering.pass_configs), execution_backend="tvm_ffi"
            )
        except Exception as error:  # TileLang raises many kinds; the user's question is always which schedule and why.
            raise InputError(f"{schedule.label}: TileLang cannot compile it: {telling_line(error)}") from error
    dynamic = lowering.takes_counter(schedule)
    compiled = CompiledKernel(kernel, kernel.get_kernel_source(), kernel.get_host_source(), nvcc, dynamic)
    if schedule.has_program:
        code = GeneratedCode(compiled.source, compiled.shared_bytes, head_dim, causal, sizes)
        lowering.check_generated(schedule, derive(schedule), code)
    return compiled
