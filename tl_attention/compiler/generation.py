"""This module has TileLang generate a schedule's kernel, has nvcc compile it, and proves the generated code.

Only this module asks TileLang for anything. TileLang makes a kernel's CUDA and the IR of its host function: that is
read, and nothing is made of it, as our launcher does what the plan says. TileLang's cache of machine code is used.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from tl_attention.codeproof.proof import refusal
from tl_attention.codeproof.read.host_ir import plan_of
from tl_attention.codeproof.registry import check_generated
from tl_attention.codeproof.verdict import GeneratedCode
from tl_attention.compiler.compiler_errors import telling_line
from tl_attention.compiler.store import Finished
from tl_attention.compiler.toolchain import check_host_compiler, use_nvcc
from tl_attention.errors import InputError
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.shared.base import FAST_MATH
from tl_attention.launch.plan import to_json
from tl_attention.problem.features import Parameter
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

BACKEND = "tvm_ffi"


def generate(
    schedule: Schedule, variant: Variant, parameters: tuple[Parameter, ...], planned: Planned | None = None
) -> Finished:
    """Has TileLang generate a schedule's kernel for a variant, proves it, and returns machine code, code and verdict.

    The kernel takes these parameters. Raises ScheduleRefused where the schedule is not safe, or where TileLang's code
    is not what the schedule says, and InputError with the compiler's error when the kernel cannot be built. A schedule
    without a Program has no proof.
    """
    lowering, planned = lowering_of(schedule), planned or Planned(schedule)
    lowering.check_variant(schedule, variant)
    refuse_unless_safe(planned, variant.head_size, variant.card)
    with use_nvcc(), ThreadPoolExecutor(1) as compiler:
        check_host_compiler()
        program = lowering.prim_func(planned, variant)
        try:
            source, plan = lowered(program, variant.arch, dict(lowering.pass_configs))
        except InputError as error:
            raise refusal(str(error)) from None
        except Exception as error:  # TileLang raises many kinds; the user's question is always which schedule and why.
            raise _cannot_compile(schedule, error) from error
        marked = with_marks(source, variant.trace)
        # nvcc is a process of its own, and takes about as long as the proof.
        code = compiler.submit(machine_code, marked, variant.arch)
        verdict = None
        if planned.program:
            plain = without_marks(GeneratedCode(marked, plan, variant, parameters))
            verdict = check_generated(schedule, planned.program, plain)
        try:
            return Finished(code.result(), marked, plan, verdict)
        except Exception as error:
            raise _cannot_compile(schedule, error) from error


def _cannot_compile(schedule: Schedule, error: Exception) -> InputError:
    return InputError(f"{schedule.label}: TileLang cannot compile it: {telling_line(error)}")


def machine_code(source: str, arch: str) -> bytes:
    """Returns the cubin of generated device code for a card's arch, from TileLang's binary cache or compiled.

    The caller holds the compiler in force. Raises whatever TileLang raises where nvcc fails.
    """
    from tilelang.cuda.backend import tilelang_callback_cuda_compile
    from tvm.target import Target

    return bytes(tilelang_callback_cuda_compile(source, Target(target(arch)), {FAST_MATH: True}))


def with_marks(source: str, kinds: frozenset[str]) -> str:
    """Returns generated device code with marks of these kinds, if any."""
    if not kinds:
        return source
    from tl_attention.codeproof.marks import marked

    return marked(source, kinds)[0]


def without_marks(code: GeneratedCode) -> GeneratedCode:
    """Returns generated code without its marks, for the proof; raises ScheduleRefused for marks of another form."""
    if not code.variant.trace:
        return code
    from tl_attention.codeproof.marks import unmarked

    try:
        return dataclasses.replace(code, source=unmarked(code.source, code.variant.trace)[0])
    except SyntaxError as error:
        raise refusal(str(error)) from None


def lowered(program: Any, arch: str, pass_configs: dict[str, Any]) -> tuple[str, str]:
    """Returns what TileLang makes of a prim_func for an arch: (CUDA, the host's plan as JSON).

    Raises InputError where the host's IR cannot be read.
    """
    from tilelang.engine.lower import device_codegen_without_compile

    with lowering_ir(program, arch, pass_configs) as (host, device, context):
        return device_codegen_without_compile(device, context).inspect_source(), to_json(plan_of(host, device))


@contextmanager
def lowering_ir(program: Any, arch: str, pass_configs: dict[str, Any]) -> Iterator[tuple[Any, Any, Any]]:
    """Yields the IR of a prim_func's host function and of its kernels, and what TileLang generates code with."""
    from tilelang import tvm
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import lower_to_host_device_ir
    from tilelang.transform.pass_config import normalize_pass_configs

    silence()
    context = create_backend_context(target(arch), None, BACKEND)
    with tvm.transform.PassContext(opt_level=3, config=normalize_pass_configs(pass_configs)), context.target:
        host, device, *_ = lower_to_host_device_ir(program, context)
        yield host, device, context


def silence() -> None:
    """Silences TileLang, which logs to stdout, also where only its cache is full, and raises failures besides."""
    for chatty in ("tilelang", "tilelang.cache.kernel_cache"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


def target(arch: str) -> dict[str, str]:
    """Returns the target that TileLang compiles for, CUDA with this arch, as a dict."""
    return {"kind": "cuda", "arch": arch}
