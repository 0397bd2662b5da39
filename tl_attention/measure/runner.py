"""Check, compile, verify, time, record: one row for every candidate, whatever becomes of it."""

from __future__ import annotations

import datetime
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tl_attention.build.toolchain import chosen
from tl_attention.errors import InputError
from tl_attention.hardware.device import require_hopper, visible_gpus
from tl_attention.measure import gpu_worker, timing
from tl_attention.measure.candidate import Candidate, verification_shapes
from tl_attention.measure.compile_pool import Compiled, compile_all
from tl_attention.measure.environment import commit, gpu, software
from tl_attention.measure.peers import MATMUL, MATMUL_FLOPS
from tl_attention.measure.pool import CallFailed, Worker
from tl_attention.measure.records import ResultsFile, Row
from tl_attention.oracle import interpret
from tl_attention.oracle.reference import ErrorReport, worst_of
from tl_attention.program.derivation import derive
from tl_attention.proof.preflight import refuse_unless_safe
from tl_attention.schedule.schedule import Schedule

START_TIMEOUT_S, VERIFY_TIMEOUT_S, SAMPLE_TIMEOUT_S = 120.0, 120.0, 60.0


class Progress(Protocol):
    """Told of each step: `phase` starts one of `total` steps, `advance` ends a step."""

    def phase(self, name: str, total: int) -> None: ...
    def advance(self, what: str) -> None: ...


@dataclass(frozen=True)
class Options:
    """How a run verifies and times."""

    rounds: int = 5
    with_peers: bool = True
    seed: int | None = None


def run(candidates: Sequence[Candidate], options: Options, results: ResultsFile, progress: Progress) -> list[Row]:
    """All rows, recorded as they come: those that fail when they fail, those that are timed at the end.

    Raises InputError where no nvcc can compile, or the GPU is none of Hopper's.
    """
    return _Run(candidates, options, results, progress).rows()


class _Run:
    def __init__(self, candidates: Sequence[Candidate], options: Options, results: ResultsFile, progress: Progress):
        self.options, self.results, self.progress = options, results, progress
        self.candidates = list(candidates)
        self.seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
        self.name = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.machine = _machine()
        self.drafts: dict[Candidate, Row] = {}
        self.done: dict[Candidate, Row] = {}

    def rows(self) -> list[Row]:
        for candidate in self.candidates:
            self.drafts[candidate] = self._draft(candidate)
        if "cuda" in self.machine["versions"]:
            # Before minutes of compiling for it.
            for found in visible_gpus()[:1]:
                require_hopper(found.capability, found.name)
        self._check()
        self._compile()
        with Worker() as worker:
            device = worker.call(gpu_worker.device_name, timeout_s=START_TIMEOUT_S)
            if device is None:
                self._interpret()
            else:
                if self.options.with_peers:
                    self._add_peers(worker)
                self._update_all(device=device)
                self._verify(worker)
                self._time(worker)
        return list(self.done.values())

    def _add_peers(self, worker: Worker) -> None:
        for shape in dict.fromkeys(c.shape for c in self.candidates):
            for name in worker.call(gpu_worker.available_peers, shape, timeout_s=START_TIMEOUT_S):
                peer = Candidate(name, shape)
                self.drafts[peer] = self._draft(peer)

    def _draft(self, candidate: Candidate) -> Row:
        s = candidate.shape
        problem = {
            "batch": s.batch,
            "heads": s.heads,
            "seq_q": s.seq_q,
            "seq_kv": s.seq_kv,
            "head_dim": s.head_dim,
            "dtype": s.dtype,
            "causal": s.causal,
        }
        sizes = "peer" if candidate.schedule is None else "fixed" if candidate.fixed else "runtime"
        return Row(candidate.name, candidate.label, sizes, problem, "ok", seed=self.seed, run=self.name, **self.machine)

    def _finish(self, candidate: Candidate, **fields: Any) -> None:
        row = replace(self.drafts.pop(candidate), **fields)
        self.done[candidate] = row
        self.results.append(row)

    def _update(self, candidate: Candidate, **fields: Any) -> None:
        self.drafts[candidate] = replace(self.drafts[candidate], **fields)

    def _update_all(self, **fields: Any) -> None:
        for candidate in self.drafts:
            self._update(candidate, **fields)

    def _check(self) -> None:
        for candidate in list(self.drafts):
            if candidate.schedule is None:
                continue
            try:
                refuse_unless_safe(candidate.schedule, candidate.shape.head_dim)
            except InputError as refusal:
                self._finish(candidate, status="refused", reason=str(refusal))

    def _compile(self) -> None:
        pending = [c for c in self.drafts if c.schedule is not None]
        self.progress.phase("compile", len(pending))
        first_with: dict[tuple[str, str], str] = {}
        for candidate, compiled in compile_all(pending, lambda c: self.progress.advance(str(c))).items():
            if compiled.error:
                self._finish(candidate, status=compiled.status, reason=compiled.error)
                continue
            assert compiled.fingerprint is not None
            self._update(candidate, **_static(compiled))
            key = (compiled.fingerprint, candidate.shape.dtype)
            if first_with.setdefault(key, candidate.name) != candidate.name:
                self._update(candidate, same_code_as=first_with[key])

    def _interpret(self) -> None:
        self.progress.phase("interpret on the CPU", len(self.drafts))
        for candidate in list(self.drafts):
            schedule = candidate.schedule
            assert schedule is not None
            if schedule.has_program:
                self._interpret_one(candidate, schedule)
            else:
                reason = "no GPU, and no Program that the CPU could run: neither verified nor timed"
                self._finish(candidate, status="compiled", reason=reason)
            self.progress.advance(str(candidate))

    def _interpret_one(self, candidate: Candidate, schedule: Schedule) -> None:
        shape = candidate.shape
        errors = interpret.verify(
            derive(schedule), schedule, head_dim=shape.head_dim, dtype=shape.dtype, causal=shape.causal, seed=self.seed
        )
        worst = worst_of(list(errors.values()))
        status = "checked_on_cpu" if all(e.ok for e in errors.values()) else "wrong"
        reason = "no GPU: verified by the interpreter, nothing was timed" if status != "wrong" else str(worst)
        self._finish(candidate, status=status, reason=reason, **_error(worst))

    def _verify(self, worker: Worker) -> None:
        self.progress.phase("verify", len(self.drafts))
        for candidate in list(self.drafts):
            shapes = verification_shapes(candidate.shape, candidate.fixed or candidate.schedule is None)
            reports: list[ErrorReport] = []
            for number, shape in enumerate(shapes):
                try:
                    report, stable = worker.call(
                        gpu_worker.verify, candidate, shape, self.seed + number, timeout_s=VERIFY_TIMEOUT_S
                    )
                except CallFailed as failed:
                    self._finish(candidate, status=failed.status, reason=f"verifying {shape}: {failed}")
                    break
                reports.append(report)
                if not report.ok or not stable:
                    status = "unstable" if report.ok else "wrong"
                    reason = "repeats on the same inputs differ" if report.ok else str(report)
                    self._finish(candidate, status=status, reason=f"{shape}: {reason}", **_error(report))
                    break
            else:
                self._update(candidate, verified_shapes=len(shapes), **_error(worst_of(reports)))
            self.progress.advance(str(candidate))

    def _time(self, worker: Worker) -> None:
        for shape in dict.fromkeys(c.shape for c in self.drafts):
            while True:
                group = [c for c in self.drafts if c.shape == shape]
                if not group:
                    break
                matmul = Candidate(MATMUL, shape)
                samples, culprit = self._sample([matmul, *group], worker)
                if culprit is None:
                    self._record_times(group, samples, matmul)
                    break
                candidate, failed = culprit
                if candidate == matmul:
                    raise CallFailed(failed.status, f"the matrix product could not be timed: {failed}")
                # Samples of two processes are not compared: without the culprit, from the start.
                self._finish(candidate, status=failed.status, reason=f"timing: {failed}")

    def _sample(
        self, group: list[Candidate], worker: Worker
    ) -> tuple[dict[Candidate, tuple[list[float], list[int]]], tuple[Candidate, CallFailed] | None]:
        """Samples of every candidate, interleaved in one process, or the one that broke it."""
        samples: dict[Candidate, tuple[list[float], list[int]]] = {c: ([], []) for c in group}
        self.progress.phase(f"time {group[0].shape}", len(group) * (self.options.rounds + 1))
        candidate = group[0]
        try:
            worker.call(gpu_worker.unload, timeout_s=START_TIMEOUT_S)
            for candidate in group:
                worker.call(gpu_worker.load, candidate, self.seed, timeout_s=VERIFY_TIMEOUT_S)
                self.progress.advance(str(candidate))
            for number in range(self.options.rounds):
                for candidate in group if number % 2 == 0 else reversed(group):
                    times, clock = worker.call(gpu_worker.sample, candidate, timeout_s=SAMPLE_TIMEOUT_S)
                    samples[candidate][0].extend(times)
                    samples[candidate][1].extend([clock] if clock else [])
                    self.progress.advance(str(candidate))
                    time.sleep(timing.PAUSE_S)
        except CallFailed as failed:
            return samples, (candidate, failed)
        return samples, None

    def _record_times(self, group: list[Candidate], samples: dict, matmul: Candidate) -> None:
        measured = {c: timing.Timing.of(*samples[c]) for c in [matmul, *group]}
        matmul_tflops = timing.tflops(MATMUL_FLOPS, measured[matmul].median_ms)
        for candidate in group:
            times = measured[candidate]
            rate = timing.tflops(candidate.shape.flops, times.median_ms)
            self._finish(
                candidate,
                median_ms=times.median_ms,
                p10_ms=times.p10_ms,
                p90_ms=times.p90_ms,
                n=times.n,
                sm_clock_mhz=times.sm_clock_mhz,
                tflops=rate,
                matmul_tflops=matmul_tflops,
                percent_of_matmul=100 * rate / matmul_tflops,
                method=timing.method(self.options.rounds),
            )


def _machine() -> dict[str, Any]:
    """What every row of a run has in common, whatever becomes of it."""
    versions, known = software(), gpu()
    nvcc = chosen(versions.get("cuda"))
    return {
        "nvcc": nvcc.version,
        "ptxas": nvcc.ptxas,
        "commit": commit(),
        "versions": versions,
        "driver": known.driver if known else "unknown",
        "power_limit_w": known.power_limit_w if known else None,
    }


def _static(compiled: Compiled) -> dict[str, Any]:
    report = compiled.report
    assert report is not None
    return {
        "fingerprint": compiled.fingerprint,
        "registers": report.registers,
        "stack_bytes": report.stack_bytes,
        "shared_bytes": report.shared_bytes,
        "loops": report.loops,
    }


def _error(report: ErrorReport) -> dict[str, float]:
    return {
        "error_rms": report.rms,
        "error_rms_budget": report.budget_rms,
        "error_max_abs": report.max_abs,
        "error_max_abs_budget": report.budget_max_abs,
    }
