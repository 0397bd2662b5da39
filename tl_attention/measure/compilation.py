"""One candidate's compilation, and what of it a row keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tl_attention.build.compile import CompiledKernel, StaticReport, compile_kernel
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.measure.candidate import Candidate


@dataclass(frozen=True)
class Compiled:
    """What the compiler made of a candidate; without it `status` and `error` say why."""

    fingerprint: str | None = None
    report: StaticReport | None = None
    status: Literal["ok", "refused", "compile_error"] = "ok"
    error: str = ""

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
        }


def kernel_of(candidate: Candidate) -> CompiledKernel:
    """The candidate's kernel, compiled or from the disk cache. Raises as `compile_kernel` does."""
    assert candidate.schedule is not None, f"{candidate} is a peer, which is not compiled here"
    return compile_kernel(candidate.schedule, candidate.variant)


def refusal_of(candidate: Candidate) -> str:
    """Why the candidate is refused before it is compiled, "" if it is not."""
    if candidate.schedule is not None:
        try:
            refuse_unless_safe(candidate.schedule, candidate.shape.head_size)
        except InputError as refusal:
            return str(refusal)
    return ""


def compile_candidate(candidate: Candidate) -> Compiled:
    """Compile it into TileLang's disk cache, from which other processes take it."""
    try:
        kernel = kernel_of(candidate)
        return Compiled(kernel.fingerprint, kernel.report)
    except ScheduleRefused as refusal:
        return Compiled(status="refused", error=str(refusal))
    except ValueError as error:
        return Compiled(status="compile_error", error=str(error))
