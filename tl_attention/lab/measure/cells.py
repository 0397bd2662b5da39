"""`measure` compiles and verifies the kernels of all cells, then samples each cell's entries in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tl_attention.errors import InputError
from tl_attention.lab.measure import gpu_worker
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.cell import OURS, Cell, Entry, entries, visited
from tl_attention.lab.measure.cell_records import AGAIN, CellRow, Timed
from tl_attention.lab.measure.pool import CallFailed
from tl_attention.lab.measure.records import Row, problem_of
from tl_attention.lab.measure.session import ROUNDS_AGAINST, Session
from tl_attention.lab.measure.timing import GraphBatch, TimedBatch
from tl_attention.lab.measure.trials import BrokeWorker, Progress, Samples, sample
from tl_attention.lab.oracle.reference import ErrorReport
from tl_attention.problem.card import KNOWN
from tl_attention.problem.lengths import Lengths
from tl_attention.problem.variant import Sizes
from tl_attention.schedule.files.named import Named

VERIFY_TIMEOUT_S = 120.0
# The batch, heads of K and V, queries and keys at which a kernel is verified, beside smaller ones.
BATCH, HEADS_KV, SEQ_Q, SEQ_KV = 2, 2, 1500, 2100
PACKED = [Lengths(1500, 2100), Lengths(0, 9), Lengths(300, 200), Lengths(40, 0)]
# A peer's error may be this many times our own budget: a peer approximates tanh, for one. A peer that computes
# something else, under another mask or with other heads, is off by hundreds.
PEER_BUDGETS = 16.0


def measure(
    cells: Sequence[Cell],
    record: Callable[[CellRow], object],
    progress: Progress,
    *,
    rounds: int = ROUNDS_AGAINST,
    others: Sequence[Named] = (),
    seed: int | None = None,
) -> list[CellRow]:
    """Verifies and times the kernels and peers of each cell, and returns a row for each cell, recorded as it comes.

    An entry that fails is in the row, with its status and reason. `others` are schedules to be timed beside ours;
    `seed`, of the inputs, is fresh by default. Raises InputError where no nvcc can compile, or there is no known GPU,
    and CallFailed where the machine fails.
    """
    of_cells = [(cell, list(entries(cell, others))) for cell in cells]
    ours = [entry.candidate for _, found in of_cells for entry in found if entry.candidate.schedule]
    # The kernels' rows are not recorded: the cells' rows have what they say.
    rows = []
    with Session(lambda row: None, seed=seed) as session:
        if session.device is None:
            raise InputError(f"cells: no GPU here, expected one of compute capability {KNOWN}: what is timed needs one")
        kernels = _verified(session, list(dict.fromkeys(map(_small, ours))), progress)
        progress.phase("time", len(cells))
        for cell, found in of_cells:
            row = _row(session, cell, {entry: _checked(session, entry, kernels) for entry in found}, rounds)
            record(row)
            rows.append(row)
            progress.advance(cell.name)
    return rows


def _small(candidate: Candidate) -> Candidate:
    """Returns the candidate on a small version of its problem; all cells of one kernel give an equal candidate."""
    mask = candidate.shape.mask
    if candidate.shape.packed:
        return replace(candidate, shape=candidate.shape.with_lengths(PACKED, HEADS_KV))
    heads, seq_q = HEADS_KV * candidate.shape.group, SEQ_Q + (mask.right or 0)
    sizes = Sizes(BATCH, heads, seq_q, seq_q + SEQ_KV - SEQ_Q + (mask.left or 0))
    return replace(candidate, shape=candidate.shape.resized(sizes))


def _verified(session: Session, candidates: Sequence[Candidate], progress: Progress) -> dict[Candidate, Row]:
    """Compiles and verifies the candidates, each while others are compiled, and returns the row of each."""
    tickets = [session.add(candidate) for candidate in candidates]
    progress.phase("compile and verify", len(tickets))
    for ticket in session.compiled(tickets):
        if not ticket.done:
            session.verify(ticket)
        progress.advance(f"{ticket.candidate.name} {ticket.candidate.shape}: {ticket.row.status}")
    return {ticket.candidate: ticket.row for ticket in tickets}


def _checked(session: Session, entry: Entry, kernels: Mapping[Candidate, Row]) -> Timed:
    """Verifies an entry on some output rows of its cell, unless its kernel failed, and returns its untimed record."""
    candidate = entry.candidate
    timed = Timed(entry.name, candidate.name, candidate.shape.flops)
    if candidate.schedule is not None:
        kernel = kernels[_small(candidate)]
        timed = replace(timed, fingerprint=kernel.fingerprint, status=kernel.status, reason=kernel.reason)
        if timed.status != "ok":
            return timed
    try:
        report = session.worker.call(gpu_worker.verify_some_rows, candidate, session.seed, timeout_s=VERIFY_TIMEOUT_S)
    except CallFailed as failed:
        return replace(timed, status=failed.status, reason=f"verifying {candidate.shape}: {failed}")
    if not isinstance(report, ErrorReport):
        return replace(timed, status="refused", reason=report)
    if not (report.ok if candidate.schedule else report.finite and report.part <= PEER_BUDGETS):
        return replace(timed, status="wrong", reason=f"{candidate.shape}: {report}", error=report.part)
    return replace(timed, error=report.part)


def _row(session: Session, cell: Cell, timed: dict[Entry, Timed], rounds: int) -> CellRow:
    """Times a cell's `ok` entries in turn, if ours and a peer are among them, and returns the cell's row."""
    again: list[Timed] = []
    batches = GraphBatch if cell.graph else TimedBatch
    while not again and (order := _order(cell, timed)):
        candidates = [entry.candidate for entry in order]
        try:
            samples = sample(session.worker, candidates, seed=session.seed, rounds=rounds, batches=batches)
        except BrokeWorker as broke:
            # It is left out, and the others are sampled anew.
            for entry in order:
                if entry.candidate == broke.candidate:
                    timed[entry] = replace(timed[entry], status=broke.status, reason=f"timing: {broke}")
            continue
        again = [with_times(replace(timed[order[-1]], name=order[-1].name + AGAIN), samples[-1])]
        for entry, found in zip(order[:-1], samples):
            timed[entry] = with_times(timed[entry], found)
    return CellRow(
        cell.name,
        cell.group,
        problem_of(cell.shape),
        (*timed.values(), *again),
        dict(cell.peers),
        mean=cell.mean,
        visited=visited(next(iter(timed)).candidate),
        method=batches.method(rounds),
        **session.common,
    )


def _order(cell: Cell, timed: Mapping[Entry, Timed]) -> list[Entry]:
    """Lists the `ok` entries to time, with the first peer both first and last; [] without ours or without a peer."""
    good = [entry for entry, found in timed.items() if found.status == "ok"]
    peer = next((entry for entry in good if entry.name in cell.peers), None)
    if peer is None or not any(entry.name == OURS for entry in good):
        return []
    return [peer, *(entry for entry in good if entry is not peer), peer]


def with_times(timed: Timed, samples: Samples) -> Timed:
    """Returns the entry with the number of calls, the median time of each round and the clock from `samples`."""
    clock = samples.timing.sm_clock_mhz
    # To the nanosecond.
    rounds_ms = tuple(round(ms, 6) for ms in samples.medians_ms)
    return replace(timed, calls=samples.calls, rounds_ms=rounds_ms, sm_clock_mhz=clock)
