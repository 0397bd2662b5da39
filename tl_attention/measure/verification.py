"""Whether a candidate computes attention: on the GPU, or by the interpreter where there is none."""

from __future__ import annotations

from typing import Any

from tl_attention.measure import gpu_worker
from tl_attention.measure.candidate import Candidate, verified_on
from tl_attention.measure.pool import CallFailed, Worker
from tl_attention.oracle import interpret
from tl_attention.oracle.reference import ErrorReport, worst_of

TIMEOUT_S = 120.0


def on_gpu(worker: Worker, candidate: Candidate, seed: int) -> dict[str, Any]:
    """The fields of its row that this fills: how large the errors were, or at which problem it failed, and how."""
    problems = verified_on(candidate.shape, candidate.fixed or candidate.planned is None, candidate.planned)
    reports: list[ErrorReport] = []
    for number, problem in enumerate(problems):
        try:
            report, stable = worker.call(gpu_worker.verify, candidate, *problem, seed + number, timeout_s=TIMEOUT_S)
        except CallFailed as failed:
            return {"status": failed.status, "reason": f"verifying {problem}: {failed}"}
        if not report.ok:
            return {"status": "wrong", "reason": f"{problem}: {report}", **_errors(report)}
        if not stable:
            reason = f"{problem}: repeats on the same inputs differ"
            return {"status": "unstable", "reason": reason, **_errors(report)}
        reports.append(report)
    return {"verified_shapes": len(problems), **_errors(worst_of(reports))}


def on_cpu(candidate: Candidate, seed: int) -> dict[str, Any]:
    """The same where there is no GPU to run it, of a schedule."""
    assert candidate.planned is not None, f"{candidate} is a peer, which needs a GPU"
    schedule, program = candidate.planned.schedule, candidate.planned.program
    if program is None:
        reason = "no GPU, and no Program that the CPU could run: neither verified nor timed"
        return {"status": "compiled", "reason": reason}
    reports = interpret.verify(program, schedule, candidate.variant, seed).values()
    worst = worst_of(list(reports))
    if not all(report.ok for report in reports):
        return {"status": "wrong", "reason": str(worst), **_errors(worst)}
    reason = "no GPU: verified by the interpreter, nothing was timed"
    return {"status": "checked_on_cpu", "reason": reason, **_errors(worst)}


def _errors(report: ErrorReport) -> dict[str, float]:
    return {
        "error_rms": report.rms,
        "error_rms_budget": report.budget_rms,
        "error_max_abs": report.max_abs,
        "error_max_abs_budget": report.budget_max_abs,
    }
