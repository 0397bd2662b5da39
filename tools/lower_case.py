"""Lowers one case of a checkout to CUDA text, without nvcc. These functions run in the processes of `same_code.py`."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkouts import check_home

DTYPES = {"float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Case:
    """A case is a kernel to lower: a schedule, a dtype, a head size and a mask. `file` is the path under schedules/."""

    file: str
    dtype: str
    head_dim: int
    causal: bool

    def __str__(self) -> str:
        return f"{self.file.removesuffix('.yaml')} {DTYPES[self.dtype]} {self.head_dim}{' causal' * self.causal}"


@dataclass(frozen=True)
class Outcome:
    """An outcome says what became of a case. Its `kind` is

    code: `text` is the CUDA text, `host` the host's C;
    refused: `text` is what the user is told, by preflight, TileLang or the proof of the generated code;
    broken: `text` is the traceback of an error that is not one of the package's own, or says that the process died.
    """

    kind: str
    text: str
    host: str = ""


def compile_case(checkout: Path, case: Case) -> None:
    """Runs preflight, compilation and the proof of the generated code. Only this function knows how the package is called."""
    import tl_attention

    refuse_unless_safe, compile_kernel = (defined(checkout, name) for name in ("refuse_unless_safe", "compile_kernel"))
    schedule = tl_attention.load_schedule(checkout / "schedules" / case.file)
    if "causal" in inspect.signature(compile_kernel).parameters:
        refuse_unless_safe(schedule, case.head_dim)
        compile_kernel(schedule, head_dim=case.head_dim, dtype=case.dtype, causal=case.causal)
        return
    mask = defined(checkout, "CAUSAL" if case.causal else "FULL")
    variant = defined(checkout, "Variant")(head_dim=case.head_dim, dtype=case.dtype, mask=mask)
    takes = inspect.signature(refuse_unless_safe).parameters
    refused = defined(checkout, "Planned")(schedule) if "planned" in takes else schedule
    refuse_unless_safe(refused, variant if {"head_dim", "size"}.isdisjoint(takes) else case.head_dim)
    compile_kernel(schedule, variant)


@functools.cache
def defined(checkout: Path, name: str) -> Any:
    """Returns the function, class or constant that the package defines under this name, in whichever module."""
    pattern = re.compile(rf"^(?:(?:def|class) {name}\b|{name}(?:: .+)? = )", re.MULTILINE)
    files = [file for file in (checkout / "tl_attention").rglob("*.py") if pattern.search(file.read_text())]
    if len(files) != 1:
        raise LookupError(f"{name} is defined in {len(files)} modules of {checkout}, expected one")
    module = ".".join(files[0].relative_to(checkout).with_suffix("").parts).removesuffix(".__init__")
    return getattr(importlib.import_module(module), name)


@functools.cache
def made(checkout: Path) -> list[Any]:
    """Makes `tilelang.compile` end before nvcc and use no cache, and returns the list in which its kernels are noted."""
    import tilelang

    check_home(checkout)
    lower = importlib.import_module("tilelang.engine.lower")
    lower.device_codegen = lower.device_codegen_without_compile  # type: ignore[attr-defined]
    tilelang.disable_cache()
    kernels: list[Any] = []
    compile_fully = tilelang.compile

    def noted(*arguments: Any, **options: Any) -> Any:
        kernels.append(compile_fully(*arguments, **options))
        return kernels[-1]

    tilelang.compile = noted
    return kernels


def lower_case(checkout: Path, case: Case) -> Outcome:
    """Lowers the case in a process of the checkout, and returns what became of it."""
    try:
        kernels = made(checkout)
        kernels.clear()
        import tl_attention

        try:
            compile_case(checkout, case)
        except tl_attention.InputError as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        (kernel,) = kernels
        return Outcome("code", kernel.get_kernel_source(), kernel.get_host_source())
    except Exception:
        return Outcome("broken", traceback.format_exc())
