"""A session checks and compiles candidates in the background, and verifies and samples them when asked.

A search adds some, looks at each beside the incumbent, and decides what comes next:

    with Session(results.append, known=of_earlier_runs) as session:
        session.add(start)
        best = None
        for ticket in session.prepared():
            if not ticket.done and session.verify(ticket):
                if best is None:
                    session.time([ticket])
                    best = ticket
                elif (comparison := session.compare(ticket, best)) and comparison.is_faster:
                    best = ticket
            while best and session.outstanding < 4 and budget_left():
                session.add(a_neighbour_of(best.candidate))

While the loop's body samples on the GPU, other processes compile what was added. One thread runs the loop and calls
everything but `add`, which any thread may call; nothing is locked. `bench.py` is a client that adds all that it has,
waits until all are compiled, and times them beside each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from tl_attention.hardware.device import another_gpu
from tl_attention.measure import gpu_worker, peers, timing, trials
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compilation import Compiled, CompilePool, refusal_of
from tl_attention.measure.machine import machine_fields
from tl_attention.measure.peers import MATMUL, PRODUCTS
from tl_attention.measure.pool import CallFailed, Worker
from tl_attention.measure.records import Comparison, Row, problem_of
from tl_attention.measure.trials import SILENT, BrokeWorker, Progress, Samples, sample

START_TIMEOUT_S = 120.0
# Enough to rank; and enough that the median lies between the 4th and the 12th ratio.
ROUNDS, ROUNDS_AGAINST = 5, 15
# How often `prepared` asks whether another thread has more to add.
POLL_S = 0.1


class Known(Protocol):
    """A `Known` has what was measured before, for a search that takes up where others ended."""

    def find(self, draft: Row) -> Row | None:
        """Returns the draft's row if its code was measured: the measurement under the draft's name, with `known_from`."""

    def add(self, row: Row) -> None:
        """Remembers what was measured."""


class Session:
    """A session is one run. Each candidate becomes one row, which `record` gets as soon as the row is complete.

    `known` has what was measured before, and learns what is measured here. A candidate whose code it finds is done
    without being measured again, and its row is marked by `known_from`. Without `known` all are measured. `seed`, of
    the inputs, is fresh by default. `arch` is the arch of the card to compile for, by default the card at hand: nothing
    is launched on a GPU of another arch. `compilers` are the processes that compile, and `worker` is the process that
    has the GPU; the session ends them. Raises InputError where no nvcc can compile, or, unless an arch is given, where
    the GPU is no known card.

    Its methods raise CallFailed where the machine fails, not a candidate.
    """

    def __init__(
        self,
        record: Callable[[Row], object],
        *,
        known: Known | None = None,
        seed: int | None = None,
        arch: str | None = None,
        compilers: CompilePool | None = None,
        worker: Worker | None = None,
    ):
        self._record, self._known = record, known
        # What was recorded, in this order.
        self.rows: list[Row] = []
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self._common = {"seed": self.seed, **machine_fields(arch)}
        self.arch: str = self._common["arch"]
        self._compilers, self.worker = compilers or CompilePool(), worker or Worker()
        self._outstanding: set[Ticket] = set()
        self._ready: SimpleQueue[tuple[Ticket, Compiled | None]] = SimpleQueue()
        self._compiling_ended = False

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends every process, whatever is still compiled."""
        self._compilers.stop()
        self.worker.close()

    @cached_property
    def device(self) -> str | None:
        """Returns the GPU's name, None where there is no GPU of the arch.

        The first to ask starts the worker, which takes seconds.
        """
        if another_gpu(self.arch):
            return None
        return self.worker.call(gpu_worker.device_name, timeout_s=START_TIMEOUT_S)

    @property
    def common(self) -> dict[str, Any]:
        """Returns the fields that all lines of this run have in common."""
        return {"device": self.device, **self._common}

    def peers_of(self, candidate: Candidate) -> list[Candidate]:
        """Returns the peers that can run this candidate's problem here, to be added as the candidate was."""
        names = self.worker.call(gpu_worker.available_peers, candidate.shape, timeout_s=START_TIMEOUT_S)
        return [Candidate(name, candidate.shape, arch=self.arch) for name in names]

    def add(self, candidate: Candidate) -> Ticket:
        """Checks the candidate and has it compiled; a peer needs neither. `prepared` hands the ticket out."""
        if candidate.arch != self.arch:
            raise ValueError(f"{candidate} is for {candidate.arch}, expected {self.arch} as all of this session")
        if self._compiling_ended and candidate.schedule is not None:
            raise ValueError(f"{candidate} comes after end_compiling, expected only peers")
        ticket = Ticket.of(candidate, refusal=refusal_of(candidate), **self._common)
        self._outstanding.add(ticket)

        def prepared(compiled: Compiled | None) -> None:
            # For a candidate that is compiled, a thread of the compilers' pool calls this.
            self._ready.put((ticket, compiled))

        if candidate.schedule is None:
            prepared(None)
        elif ticket.refusal:
            prepared(Compiled(status="refused", error=ticket.refusal))
        else:
            self._compilers.submit(candidate, prepared)
        return ticket

    @property
    def outstanding(self) -> int:
        """Returns how many candidates were added and not yet handed out."""
        return len(self._outstanding)

    def prepared(self, more: Callable[[], bool] = lambda: False) -> Iterator[Ticket]:
        """Yields the ticket of each candidate that was added, once, as its compilation ends, until none is outstanding.

        The tickets of candidates that were refused, could not be compiled, or are known are done. The loop's body may
        add other candidates. Where another thread adds some, `more`, the thread's `is_alive` for one, says whether to
        wait for it.
        """
        # In this order: what a thread added before it ended is outstanding by now.
        while more() or self._outstanding:
            try:
                ticket, compiled = self._ready.get(timeout=POLL_S)
            except Empty:
                continue
            self._outstanding.discard(ticket)
            if compiled is not None:
                self._settle(ticket, compiled)
            yield ticket

    def compile_added(self, tickets: Sequence[Ticket], progress: Progress) -> None:
        """Waits until these tickets, all that was added, are compiled; only peers can be added afterwards."""
        progress.phase("compile", sum(not ticket.refusal for ticket in tickets))
        for ticket in self.prepared():
            if not ticket.refusal:
                progress.advance(str(ticket.candidate))
        # Nothing else shall run, or hold memory of the GPU, while the others are timed.
        self.end_compiling()

    def end_compiling(self) -> None:
        """Waits until all that was added is compiled, and ends the processes; only peers can be added afterwards."""
        self._compiling_ended = True
        self._compilers.finish()

    def leave_out(self, ticket: Ticket, reason: str) -> None:
        """Ends a ticket as `compiled`, neither verified nor timed. The row says why."""
        # Nothing ran, so it is nothing to be known by.
        self._finish(ticket, status="compiled", device=None, reason=reason)

    def verify(self, ticket: Ticket) -> bool:
        """Verifies the candidate, and says whether it computes attention on the GPU, so that it may be timed.

        The ticket is done if the candidate does not. Without a GPU the interpreter verifies the candidate, nothing can
        be timed, and the ticket is done in any case.
        """
        if self.device is None:
            self._finish(ticket, **trials.on_cpu(ticket.candidate, self.seed))
            return False
        ticket.update(device=self.device, **trials.on_gpu(self.worker, ticket.candidate, self.seed))
        if not ticket.is_verified:
            self._finish(ticket)
        return ticket.is_verified

    def verify_pending(self, tickets: Sequence[Ticket], progress: Progress) -> None:
        """Verifies the candidates of the tickets that are not done."""
        pending = [ticket for ticket in tickets if not ticket.done]
        progress.phase("interpret on the CPU" if self.device is None else "verify", len(pending))
        for ticket in pending:
            self.verify(ticket)
            progress.advance(str(ticket.candidate))

    def time(
        self,
        tickets: Sequence[Ticket],
        rounds: int = ROUNDS,
        progress: Progress = SILENT,
        *,
        product: str = MATMUL,
        against: Mapping[Ticket, Ticket] | None = None,
    ) -> None:
        """Times the candidates of each problem beside each other and a plain product: all tickets are done then.

        `against` says which ticket is compared with which, round by round. If a candidate breaks the worker, the others
        are sampled again from the start, without it.
        """
        for shape in dict.fromkeys(ticket.candidate.shape for ticket in tickets):
            plain = Candidate(product, shape, arch=self.arch)
            group = [ticket for ticket in tickets if ticket.candidate.shape == shape]
            while group:
                samples = self._sample(plain, group, rounds, f"time {shape}", progress)
                if samples is not None:
                    for ticket in group:
                        fields = times(samples[ticket.candidate], shape.flops, rounds, product, samples[plain])
                        other = against.get(ticket) if against else None
                        compared = _compared(ticket, other, samples) if other in group else None
                        self._finish(ticket, against=compared, **fields)
                    break
                group = [ticket for ticket in group if ticket.is_verified]

    def compare(
        self, ticket: Ticket, incumbent: Ticket, rounds: int = ROUNDS_AGAINST, progress: Progress = SILENT
    ) -> Comparison | None:
        """Samples the candidate in turn with the incumbent, on the same problem: the ticket is done then.

        The row has the candidate's times and the comparison. A candidate that is compared again has another row.
        Returns None if the candidate broke the worker.
        """
        ours, theirs = ticket.candidate, incumbent.candidate
        if ours == theirs or ours.shape != theirs.shape:
            raise ValueError(f"{ours} against {theirs}: expected two candidates of one problem, not equal in all")
        if not incumbent.is_verified:
            raise ValueError(f"{theirs} is not verified, expected an incumbent that is")
        samples = self._sample(theirs, [ticket], rounds, f"{ours} against {theirs}", progress)
        if samples is None:
            return None
        comparison = _compared(ticket, incumbent, samples)
        self._finish(ticket, against=comparison, **times(samples[ours], ours.shape.flops, rounds))
        return comparison

    def _sample(
        self, anchor: Candidate, tickets: Sequence[Ticket], rounds: int, phase: str, progress: Progress
    ) -> dict[Candidate, Samples] | None:
        """Samples the anchor and the tickets' candidates; None where a ticket broke the worker: that ticket is done."""
        unverified = next((ticket for ticket in tickets if not ticket.is_verified), None)
        if unverified:
            raise ValueError(f"{unverified.candidate} is not verified, expected to time only what is")
        candidates = [anchor, *(ticket.candidate for ticket in tickets)]
        try:
            samples = sample(self.worker, candidates, seed=self.seed, rounds=rounds, phase=phase, progress=progress)
            return dict(zip(candidates, samples))
        except BrokeWorker as broke:
            if broke.candidate == anchor:
                what = f"the {PRODUCTS[anchor.name]}" if anchor.name in PRODUCTS else f"the incumbent, {anchor},"
                raise CallFailed(broke.status, f"{what} could not be timed: {broke}") from None
            culprit = next(ticket for ticket in tickets if ticket.candidate == broke.candidate)
            self._finish(culprit, status=broke.status, reason=f"timing: {broke}")
            return None

    def _settle(self, ticket: Ticket, compiled: Compiled) -> None:
        """Fills the row with what the check and the compiler said, or the whole row where the code is known."""
        ticket.update(**compiled.row_fields)
        if compiled.error:
            self._finish(ticket)
        elif self._known is not None:
            ticket.update(device=self.device)
            if known := self._known.find(ticket.row):
                ticket.row = known
                self._finish(ticket)

    def _finish(self, ticket: Ticket, **fields: Any) -> None:
        ticket.update(**fields)
        ticket.done = True
        if self._known is not None:
            self._known.add(ticket.row)
        self.rows.append(ticket.row)
        self._record(ticket.row)


def _compared(ticket: Ticket, other: Ticket, samples: Mapping[Candidate, Samples]) -> Comparison:
    """Compares two candidates that were sampled in turn."""
    medians = samples[ticket.candidate].medians_ms, samples[other.candidate].medians_ms
    return Comparison.of(other.candidate.label, other.row.fingerprint, *medians)


@dataclass(eq=False)
class Ticket:
    """A ticket has the `row` of a candidate, as far as it is known.

    The row is complete, and recorded, where the ticket is `done`. `refusal` says why the candidate was refused before
    it was compiled, "" if it was not.
    """

    candidate: Candidate
    row: Row
    refusal: str = ""
    done: bool = False

    @classmethod
    def of(cls, candidate: Candidate, *, refusal: str = "", **fields: Any) -> Ticket:
        """Makes the ticket of a candidate at the start. `fields` of the row are those that all rows of a run share."""
        row = Row(candidate.name, candidate.label, candidate.sizes, problem_of(candidate.shape), "ok", **fields)
        return cls(candidate, row, refusal)

    @property
    def is_verified(self) -> bool:
        """Says whether the candidate may be timed."""
        return self.row.status == "ok" and self.row.verified_shapes > 0

    def update(self, **fields: Any) -> None:
        """Fills fields of the row."""
        self.row = replace(self.row, **fields)


def times(
    samples: Samples, flops: int, rounds: int, product: str = peers.MATMUL, of_product: Samples | None = None
) -> dict[str, Any]:
    """Returns the fields of a row that sampling fills.

    Without the samples of a plain product the row is compared with none.
    """
    found = samples.timing
    rate = timing.tflops(flops, found.median_ms)
    plain = timing.tflops(peers.product_flops(product), of_product.timing.median_ms) if of_product else None
    return {
        **asdict(found),
        "rounds_ms": tuple(round(ms, 6) for ms in samples.medians_ms),
        "tflops": rate,
        "product": product,
        "matmul_tflops": plain,
        "percent_of_matmul": 100 * rate / plain if plain else None,
        "method": timing.method(rounds),
    }
