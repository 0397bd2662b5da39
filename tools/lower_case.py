"""Lowers one case of a checkout to CUDA text, without nvcc. These functions run in the processes of `same_code.py`."""

from __future__ import annotations

import functools
import importlib
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

    code: `text` is the CUDA text, `host` the host's plan as JSON;
    refused: `text` is what the user is told, by preflight, TileLang or the proof of the generated code;
    broken: `text` is the traceback of an error that is not one of the package's own, or says that the process died.
    """

    kind: str
    text: str
    host: str = ""


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
def leave_out_nvcc() -> None:
    """Makes TileLang's compilation end before nvcc, and use no cache."""
    import tilelang

    lower = importlib.import_module("tilelang.engine.lower")
    lower.device_codegen = lower.device_codegen_without_compile  # type: ignore[attr-defined]
    tilelang.disable_cache()


def lower_case(checkout: Path, case: Case) -> Outcome:
    """Lowers the case in a process of the checkout, and returns what became of it."""
    try:
        check_home(checkout)
        leave_out_nvcc()
        import tl_attention

        names = ("compile_kernel", "Variant", "CAUSAL" if case.causal else "FULL")
        compile_kernel, variant, mask = (defined(checkout, name) for name in names)
        schedule = tl_attention.load_schedule(checkout / "schedules" / case.file)
        try:
            kernel = compile_kernel(schedule, variant(head_dim=case.head_dim, dtype=case.dtype, mask=mask))
        except tl_attention.InputError as error:
            return Outcome("refused", f"{type(error).__name__}: {error}")
        return Outcome("code", kernel.source, kernel.host_plan)
    except Exception:
        return Outcome("broken", traceback.format_exc())
