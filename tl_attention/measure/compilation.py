"""One candidate's compilation, and what of it a row keeps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from tl_attention.build.compile import CompiledKernel, StaticReport, compile_kernel
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.lowering.registry import lowering_of
from tl_attention.measure.candidate import Candidate


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a candidate, in how many seconds; without it `status` and `error` say why."""

    fingerprint: str | None = None
    report: StaticReport | None = None
    status: Literal["ok", "refused", "compile_error"] = "ok"
    error: str = ""
    seconds: float = 0.0

    @property
    def row_fields(self) -> dict[str, Any]:
        """The fields of a row that a compilation fills."""
        if self.report is None:
            return {"status": self.status, "reason": self.error}
        return {
            "fingerprint": self.fingerprint,
            "registers": self.report.registers,
            "stack_bytes": self.report.stack_bytes,
            "shared_bytes": self.report.shared_bytes,
            "loops": self.report.loops,
            "machine_code": self.report.machine_code,
        }


def kernel_of(candidate: Candidate) -> CompiledKernel:
    """The candidate's kernel, compiled or from the disk cache. Raises as `compile_kernel` does."""
    assert candidate.schedule is not None, f"{candidate} is a peer, which is not compiled here"
    return compile_kernel(candidate.schedule, candidate.variant)


def refusal_of(candidate: Candidate) -> str:
    """Why the candidate is refused before it is compiled, "" if it is not."""
    if candidate.planned is not None:
        try:
            lowering_of(candidate.planned.schedule).check_lengths(candidate.planned.schedule, candidate.shape)
            refuse_unless_safe(candidate.planned, candidate.shape.head_size, candidate.variant.card)
        except InputError as refusal:
            return str(refusal)
    return ""


def compile_candidate(candidate: Candidate) -> Compiled:
    """Compile it into the store, from which other processes take it, and read its machine code."""
    return _compiled(candidate, with_report=True)


def finish_candidate(candidate: Candidate) -> Compiled:
    """Compile it into the store."""
    return _compiled(candidate, with_report=False)


def _compiled(candidate: Candidate, with_report: bool) -> Compiled:
    started = time.monotonic()
    try:
        kernel = kernel_of(candidate)
        report = kernel.report if with_report else None
        return Compiled(kernel.fingerprint, report, seconds=time.monotonic() - started)
    except ScheduleRefused as refusal:
        return Compiled(status="refused", error=str(refusal))
    except ValueError as error:
        return Compiled(status="compile_error", error=str(error))
