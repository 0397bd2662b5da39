"""Measures cells: compiles and verifies all kernels, then samples the entries of one cell after another in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tl_attention.errors import InputError
from tl_attention.files.named import Named
from tl_attention.hardware.card import KNOWN
from tl_attention.measure import gpu_worker
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.cell import OURS, Cell, Entry, entries, visited
from tl_attention.measure.cell_records import AGAIN, CellRow, Timed
from tl_attention.measure.compile_pool import CompilePool
from tl_attention.measure.pool import CallFailed, Worker
from tl_attention.measure.progress import Progress
from tl_attention.measure.records import Row, problem_of
from tl_attention.measure.sampling import BrokeWorker, Samples, sample
from tl_attention.measure.session import ROUNDS_AGAINST, Session
from tl_attention.measure.timing import batch_method
from tl_attention.oracle.reference import ErrorReport
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.schedule.schedule import Schedule

VERIFY_TIMEOUT_S = 120.0
# Of the heads of K and V, the queries and the keys at which a kernel is verified, beside smaller ones.
BATCH, HEADS_KV, SEQ_Q, SEQ_KV = 2, 2, 1500, 2100
# So many times our own budget a peer's error may be: its tanh is approximated, for one. What computes something else,
# under another mask or with other heads, is off by hundreds.
PEER_BUDGETS = 16.0
Kernel = tuple[Schedule, Variant]


@dataclass(frozen=True)
class Options:
    """How cells are measured. `others` are schedules beside ours; `seed`, of the inputs, is fresh by default."""

    rounds: int = ROUNDS_AGAINST
    others: Sequence[Named] = ()
    seed: int | None = None


def measure(
    cells: Sequence[Cell], options: Options, record: Callable[[CellRow], object], progress: Progress
) -> list[CellRow]:
    """A row for each cell, recorded as it comes; what fails is in it, with its status and reason.

    Raises InputError where no nvcc can compile, or there is no GPU that is known, and CallFailed where the machine fails.
    """
    of_cells = [(cell, list(entries(cell, options.others))) for cell in cells]
    candidates = [entry.candidate for _, found in of_cells for entry in found]
    different = dict.fromkeys(_kernel_of(candidate) for candidate in candidates if candidate.schedule)
    worker, rows = Worker(), []
    with Session(_nobody, seed=options.seed, compilers=CompilePool(len(different)), worker=worker) as session:
        if session.device is None:
            raise InputError(f"cells: no GPU here, expected one of compute capability {KNOWN}: what is timed needs one")
        kernels = _verified(session, candidates, progress)
        progress.phase("time", len(cells))
        for cell, found in of_cells:
            row = _Measuring(worker, session, cell, kernels, options.rounds).row(found)
            record(row)
            rows.append(row)
            progress.advance(cell.name)
    return rows


def _nobody(row: Row) -> None:
    """The rows of kernels are no record: what they say stands in those of the cells."""


def _kernel_of(candidate: Candidate) -> Kernel:
    assert candidate.schedule is not None
    return candidate.schedule, candidate.variant


def _verified(session: Session, candidates: Sequence[Candidate], progress: Progress) -> dict[Kernel, Row]:
    """What became of each kernel: compiled once for all of its cells, and verified at small sizes meanwhile."""
    tickets = {}
    for candidate in candidates:
        if candidate.schedule and _kernel_of(candidate) not in tickets:
            heads, seq_q = HEADS_KV * candidate.shape.group, SEQ_Q + (candidate.shape.mask.right or 0)
            sizes = Sizes(BATCH, heads, seq_q, seq_q + SEQ_KV - SEQ_Q + (candidate.shape.mask.left or 0))
            tickets[_kernel_of(candidate)] = session.add(replace(candidate, shape=candidate.shape.resized(sizes)))
    progress.phase("compile and verify", len(tickets))
    for ticket in session.prepared():
        if not ticket.done:
            session.verify(ticket)
        progress.advance(f"{ticket.candidate.name} {ticket.candidate.shape}: {ticket.row.status}")
    # Nothing else shall run while the cells are timed.
    session.end_compiling()
    return {kernel: ticket.row for kernel, ticket in tickets.items()}


class _Measuring:
    """One cell, measured."""

    def __init__(self, worker: Worker, session: Session, cell: Cell, kernels: dict[Kernel, Row], rounds: int):
        self._worker, self._session, self._cell = worker, session, cell
        self._kernels, self._rounds = kernels, rounds
        self._timed: dict[Entry, Timed] = {}

    def row(self, found: Sequence[Entry]) -> CellRow:
        """Its row, whatever becomes of its entries."""
        for entry in found:
            self._timed[entry] = self._checked(entry)
        again = self._sample()
        cell = self._cell
        return CellRow(
            cell.name,
            cell.group,
            problem_of(cell.shape),
            (*self._timed.values(), *again),
            dict(cell.peers),
            mean=cell.mean,
            visited=visited(found[0].candidate),
            method=batch_method(self._rounds),
            **self._session.common,
        )

    def _checked(self, entry: Entry) -> Timed:
        """The entry before it is timed: whether its kernel is right, at small sizes and, on some rows, here."""
        candidate = entry.candidate
        timed = Timed(entry.name, candidate.name, candidate.shape.flops)
        if candidate.schedule is not None:
            kernel = self._kernels[_kernel_of(candidate)]
            timed = replace(timed, fingerprint=kernel.fingerprint, status=kernel.status, reason=kernel.reason)
            if timed.status != "ok":
                return timed
        try:
            report = self._call(gpu_worker.verify_some_rows, candidate)
        except CallFailed as failed:
            return replace(timed, status=failed.status, reason=f"verifying {candidate.shape}: {failed}")
        if not isinstance(report, ErrorReport):
            return replace(timed, status="refused", reason=report)
        if not (report.ok if candidate.schedule else report.finite and report.part <= PEER_BUDGETS):
            return replace(timed, status="wrong", reason=f"{candidate.shape}: {report}", error=report.part)
        return replace(timed, error=report.part)

    def _call(self, function: Callable[..., Any], candidate: Candidate) -> Any:
        return self._worker.call(function, candidate, self._session.seed, timeout_s=VERIFY_TIMEOUT_S)

    def _sample(self) -> list[Timed]:
        """Sample what is right, the first of the peers first and, again, last; who breaks the worker is left out.

        Returns that second entry. Without ours, or without a peer, there is nothing to compare.
        """
        while True:
            good = [entry for entry, timed in self._timed.items() if timed.status == "ok"]
            peer = next((entry for entry in good if entry.name in self._cell.peers), None)
            if peer is None or not any(entry.name == OURS for entry in good):
                return []
            order = [peer, *(entry for entry in good if entry is not peer), peer]
            try:
                samples = self._samples(order)
            except BrokeWorker as broke:
                self._fail(good, broke)
                continue
            for entry, found in zip(order[:-1], samples):
                self._timed[entry] = with_times(self._timed[entry], found)
            return [with_times(replace(self._timed[peer], name=peer.name + AGAIN), samples[-1])]

    def _samples(self, order: Sequence[Entry]) -> list[Samples]:
        return sample(
            self._worker,
            [entry.candidate for entry in order],
            seed=self._session.seed,
            rounds=self._rounds,
            batches=True,
        )

    def _fail(self, good: Sequence[Entry], broke: BrokeWorker) -> None:
        for entry in good:
            if entry.candidate == broke.candidate:
                failed = replace(self._timed[entry], status=broke.status, reason=f"timing: {broke}")
                self._timed[entry] = failed


def with_times(timed: Timed, samples: Samples) -> Timed:
    """The entry with what sampling found."""
    clock = samples.timing.sm_clock_mhz
    # To the nanosecond.
    rounds_ms = tuple(round(ms, 6) for ms in samples.medians_ms)
    return replace(timed, calls=samples.calls, rounds_ms=rounds_ms, sm_clock_mhz=clock)
