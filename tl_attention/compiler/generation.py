"""This module has TileLang trace and compile a schedule's kernel, and proves the result.

Only this module asks TileLang for anything. A kernel is lowered here step by step, so that the host's plan comes from
the very IR that is compiled. TileLang's cache of kernels, which keeps no IR, is not used; its cache of machine code is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

from tl_attention.codeproof.proof import refusal
from tl_attention.codeproof.read.host_ir import plan_of
from tl_attention.codeproof.read.host_plan import to_json
from tl_attention.codeproof.registry import check_generated
from tl_attention.codeproof.verdict import GeneratedCode
from tl_attention.compiler.compiler_errors import telling_line
from tl_attention.compiler.scratch import scratch_folder
from tl_attention.compiler.store import Finished
from tl_attention.compiler.toolchain import check_host_compiler, use_nvcc
from tl_attention.errors import InputError
from tl_attention.kernels.preflight import refuse_unless_safe
from tl_attention.kernels.registry import lowering_of
from tl_attention.problem.features import Parameter
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

LIBRARY, BACKEND = "executable.so", "tvm_ffi"
# TileLang gives generated device code to the function of this name, and compiles what it returns.
POSTPROCESS = "tilelang_callback_cuda_postproc"


def generate(
    schedule: Schedule, variant: Variant, parameters: tuple[Parameter, ...], planned: Planned | None = None
) -> Finished:
    """Compiles a schedule's kernel for a variant by TileLang, proves its code, and returns library, code and verdict.

    The kernel takes these parameters. Raises ScheduleRefused where the schedule is not safe, or where TileLang's code
    is not what the schedule says, and InputError with the compiler's error when the kernel cannot be built. A schedule
    without a Program has no proof.
    """
    lowering, planned = lowering_of(schedule), planned or Planned(schedule)
    lowering.check_variant(schedule, variant)
    refuse_unless_safe(planned, variant.head_size, variant.card)
    with use_nvcc():
        check_host_compiler()
        program = lowering.prim_func(planned, variant)
        try:
            with marking(variant.trace):
                module, source, plan = lowered(program, variant.arch, dict(lowering.pass_configs))
            library = _linked(module)
        except InputError as error:
            raise refusal(str(error)) from None
        except Exception as error:  # TileLang raises many kinds; the user's question is always which schedule and why.
            raise InputError(f"{schedule.label}: TileLang cannot compile it: {telling_line(error)}") from error
    code = GeneratedCode(source, plan, variant, parameters)
    plain = without_marks(code)
    verdict = check_generated(schedule, planned.program, plain) if planned.program else None
    return Finished(library, source, plan, verdict)


@contextlib.contextmanager
def marking(kinds: frozenset[str]) -> Iterator[None]:
    """Has TileLang compile kernels with marks of these kinds, if any, in their code while the context lasts."""
    if not kinds:
        yield
        return
    import tvm_ffi

    from tl_attention.codeproof.marks import marked

    tvm_ffi.register_global_func(POSTPROCESS, f=lambda source, target: marked(source, kinds)[0], override=True)
    try:
        yield
    finally:
        tvm_ffi.registry.remove_global_func(POSTPROCESS)


def without_marks(code: GeneratedCode) -> GeneratedCode:
    """Returns generated code without its marks, for the proof; raises ScheduleRefused for marks of another form."""
    if not code.variant.trace:
        return code
    from tl_attention.codeproof.marks import unmarked

    try:
        return dataclasses.replace(code, source=unmarked(code.source, code.variant.trace)[0])
    except SyntaxError as error:
        raise refusal(str(error)) from None


def lowered(program: Any, arch: str, pass_configs: dict[str, Any], compiles: bool = True) -> tuple[Any, str, str]:
    """Returns what TileLang makes of a prim_func for an arch: (module to link, CUDA, the host's plan as JSON).

    The module has machine code if it `compiles`; then the caller holds the compiler in force. Raises InputError where
    the host's IR cannot be read.
    """
    from tilelang import tvm
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import (
        device_codegen,
        device_codegen_without_compile,
        host_codegen,
        lower_to_host_device_ir,
    )
    from tilelang.transform.pass_config import normalize_pass_configs

    silence()
    context = create_backend_context(target(arch), None, BACKEND)
    with tvm.transform.PassContext(opt_level=3, config=normalize_pass_configs(pass_configs)), context.target:
        host, device, *_ = lower_to_host_device_ir(program, context)
        plan = to_json(plan_of(host))
        device_code = (device_codegen if compiles else device_codegen_without_compile)(device, context)
        module = host_codegen(host, context)
    module.import_module(device_code)
    return module, device_code.inspect_source(), plan


def silence() -> None:
    """Silences TileLang, which logs to stdout, also where only its cache is full, and raises failures besides."""
    for chatty in ("tilelang", "tilelang.cache.kernel_cache"):
        logging.getLogger(chatty).setLevel(logging.CRITICAL)


def target(arch: str) -> dict[str, str]:
    """Returns the target that TileLang compiles for, CUDA with this arch, as a dict."""
    return {"kind": "cuda", "arch": arch}


def _linked(module: Any) -> bytes:
    """Compiles a lowered module's C, and returns the kernel's shared library."""
    with scratch_folder() as folder:
        library = folder / LIBRARY
        module.export_library(str(library))
        return library.read_bytes()
