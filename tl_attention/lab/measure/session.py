"""A session is one run: it checks, compiles, verifies and times candidates, each of which becomes one row.

While the compilers' processes work, the caller may verify what is compiled:

    with Session(results.append) as session:
        tickets = [session.add(candidate) for candidate in candidates]
        for ticket in session.compiled(tickets):
            if not ticket.done:
                session.verify(ticket)
        session.time([ticket for ticket in tickets if not ticket.done])
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from tl_attention.lab.measure import gpu_worker, peers, timing, trials
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled, compile_each, refusal_of
from tl_attention.lab.measure.device import another_gpu
from tl_attention.lab.measure.machine import machine_fields
from tl_attention.lab.measure.pool import CallFailed, Worker
from tl_attention.lab.measure.records import MATMUL, PRODUCTS, RoundRatios, Row, problem_of
from tl_attention.lab.measure.trials import SILENT, BrokeWorker, Progress, Samples, sample
from tl_attention.problem.shape import AttentionShape

START_TIMEOUT_S = 120.0
# Enough to rank; and enough that the median lies between the 4th and the 12th ratio.
ROUNDS, ROUNDS_AGAINST = 5, 15
Compiling = Generator[tuple[Candidate, Compiled], None, None]


class Session:
    """A session checks, compiles, verifies and times candidates in one run, and makes one row of each.

    Raises InputError where no nvcc can compile, or, unless an arch is given, where the GPU is no known card. Its
    methods raise CallFailed where the machine fails, not a candidate.
    """

    def __init__(
        self,
        record: Callable[[Row], object],  # gets a row as soon as the row is complete
        *,
        seed: int | None = None,  # of the inputs, by default a fresh one
        # Of the card to compile for, by default the card at hand: nothing is launched on a GPU of another arch.
        arch: str | None = None,
        # The session ends both: what compiles candidates, and the process that has the GPU.
        compilers: Callable[[Sequence[Candidate]], Compiling] | None = None,
        worker: Worker | None = None,
    ):
        self._record = record
        # What was recorded, in this order.
        self.rows: list[Row] = []
        self.seed = secrets.randbelow(2**31) if seed is None else seed
        self._common = {"seed": self.seed, **machine_fields(arch)}
        self.arch: str = self._common["arch"]
        self._compilers, self.worker = compilers or compile_each, worker or Worker()
        self._compiling: Compiling | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        """Ends the compilers' processes and the worker, even if something is still being compiled."""
        if self._compiling:
            self._compiling.close()
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
        """Returns the fields that all lines of this run share, such as device, arch, seed and versions."""
        return {"device": self.device, **self._common}

    def peers_of(self, shape: AttentionShape) -> list[Candidate]:
        """Returns a candidate for each peer that may run this problem; whether the GPU here can is not asked."""
        names = self.worker.call(peers.available, shape, timeout_s=START_TIMEOUT_S)
        return [Candidate(name, shape, arch=self.arch) for name in names]

    def add(self, candidate: Candidate) -> Ticket:
        """Returns a candidate's new ticket, which is done already if its lengths or the proof of safety refuse it."""
        if candidate.arch != self.arch:
            raise ValueError(f"{candidate} is for {candidate.arch}, expected {self.arch} as all of this session")
        problem = problem_of(candidate.shape)
        ticket = Ticket(candidate, Row(candidate.name, candidate.label, candidate.sizes, problem, "ok", **self._common))
        if refusal := refusal_of(candidate):
            self._finish(ticket, status="refused", reason=refusal)
        return ticket

    def compiled(self, tickets: Sequence[Ticket]) -> Iterator[Ticket]:
        """Yields tickets that are done, then compiles the others' candidates and yields each as its compilation ends.

        A ticket whose candidate cannot be compiled is done. The compilers' processes end with the last compilation.
        """
        yield from (ticket for ticket in tickets if ticket.done)
        of_candidate = {ticket.candidate: ticket for ticket in tickets if not ticket.done}
        self._compiling = self._compilers(list(of_candidate))
        for candidate, compiled in self._compiling:
            ticket = of_candidate[candidate]
            ticket.update(**compiled.row_fields)
            if compiled.error:
                self._finish(ticket)
            yield ticket

    def compile(self, candidates: Sequence[Candidate], progress: Progress) -> list[Ticket]:
        """Checks and compiles candidates, and returns their tickets in the same order."""
        tickets = [self.add(candidate) for candidate in candidates]
        sound = [ticket for ticket in tickets if not ticket.done]
        progress.phase("compile", len(sound))
        for ticket in self.compiled(sound):
            progress.advance(str(ticket.candidate))
        return tickets

    def leave_out(self, ticket: Ticket, reason: str) -> None:
        """Completes the ticket's row as `compiled` with this reason, so that it is neither verified nor timed."""
        self._finish(ticket, status="compiled", device=None, reason=reason)

    def verify(self, ticket: Ticket) -> bool:
        """Verifies a ticket's candidate, and says whether it computes attention on the GPU, so that it may be timed.

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
        against: Mapping[str, str] = MappingProxyType({}),
        warm_s: float = 0.0,
    ) -> None:
        """Times the tickets' candidates, those of a problem in turn with a plain product, and completes their rows.

        All tickets are done then. `against` says by name which candidate is compared with which of its problem, round
        by round. With `warm_s` the GPU is busy for so long first, and each candidate has tensors of its own. If a
        candidate breaks the worker, the others are sampled again from the start, without it.
        """
        for shape in dict.fromkeys(ticket.candidate.shape for ticket in tickets):
            plain = Candidate(product, shape, arch=self.arch)
            group = [ticket for ticket in tickets if ticket.candidate.shape == shape]
            while group:
                samples = self._sample(plain, group, rounds, progress, warm_s)
                if samples is None:
                    group = [ticket for ticket in group if ticket.is_verified]
                    continue
                named = {ticket.candidate.name: ticket for ticket in group}
                for ticket in group:
                    of_ticket = samples[ticket.candidate]
                    fields = times(of_ticket, shape.flops, rounds, product, samples[plain])
                    if other := named.get(against.get(ticket.candidate.name, "")):
                        medians = of_ticket.medians_ms, samples[other.candidate].medians_ms
                        fields["against"] = RoundRatios.of(other.candidate.label, other.row.fingerprint, *medians)
                    self._finish(ticket, **fields)
                break

    def _sample(
        self, plain: Candidate, tickets: Sequence[Ticket], rounds: int, progress: Progress, warm_s: float
    ) -> dict[Candidate, Samples] | None:
        """Returns samples of a plain product and of the tickets' candidates, None if a candidate broke the worker."""
        unverified = next((ticket for ticket in tickets if not ticket.is_verified), None)
        if unverified:
            raise ValueError(f"{unverified.candidate} is not verified, expected to time only what is")
        candidates = [plain, *(ticket.candidate for ticket in tickets)]
        phase = f"time {plain.shape}"
        try:
            how: dict[str, Any] = {"rounds": rounds, "phase": phase, "progress": progress, "warm_s": warm_s}
            samples = sample(self.worker, candidates, seed=self.seed, **how)
            return dict(zip(candidates, samples))
        except BrokeWorker as broke:
            if broke.candidate == plain:
                what = f"the {PRODUCTS[plain.name]} could not be timed: {broke}"
                raise CallFailed(broke.status, what) from None
            culprit = next(ticket for ticket in tickets if ticket.candidate == broke.candidate)
            self._finish(culprit, status=broke.status, reason=f"timing: {broke}")
            return None

    def _finish(self, ticket: Ticket, **fields: Any) -> None:
        ticket.update(**fields)
        ticket.done = True
        self.rows.append(ticket.row)
        self._record(ticket.row)


@dataclass(eq=False)
class Ticket:
    """A ticket holds a session's candidate and its row."""

    candidate: Candidate
    row: Row  # filled as the candidate is compiled, verified and timed
    done: bool = False  # the row is complete, and recorded

    @property
    def is_verified(self) -> bool:
        """Says whether the row is ok and the candidate was verified on some problem, so that it may be timed."""
        return self.row.status == "ok" and self.row.verified_shapes > 0

    def update(self, **fields: Any) -> None:
        """Replaces fields of the row by these values."""
        self.row = replace(self.row, **fields)


def times(samples: Samples, flops: int, rounds: int, product: str, of_product: Samples) -> dict[str, Any]:
    """Returns the fields of a row that timing fills, with its rate as a percentage of a plain product's."""
    found = samples.timing
    rate = timing.tflops(flops, found.median_ms)
    plain = timing.tflops(peers.product_flops(product), of_product.timing.median_ms)
    return {
        **asdict(found),
        "rounds_ms": tuple(round(ms, 6) for ms in samples.medians_ms),
        "tflops": rate,
        "product": product,
        "matmul_tflops": plain,
        "percent_of_matmul": 100 * rate / plain,
        "method": timing.method(rounds),
    }
