"""Times many candidates beside each other: compiles all, verifies all, then samples all in turn in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compile_pool import CompilePool
from tl_attention.measure.products import MATMUL
from tl_attention.measure.progress import Progress
from tl_attention.measure.records import Row
from tl_attention.measure.session import ROUNDS, Session
from tl_attention.measure.ticket import Ticket


@dataclass(frozen=True)
class Options:
    """How the candidates are verified and timed. `seed`, of the inputs, is fresh by default; `arch` is that of the card that
    they are compiled for, by default the one at hand.

    `peers` are those that stand beside them where they can run the problem, None for all. `product` is the plain one whose
    rate is 100 %. `against` says by name which candidate is compared with which, round by round.
    """

    rounds: int = ROUNDS
    peers: Sequence[str] | None = None
    seed: int | None = None
    arch: str | None = None
    product: str = MATMUL
    against: Mapping[str, str] = field(default_factory=dict)


def measure(
    candidates: Sequence[Candidate], options: Options, record: Callable[[Row], object], progress: Progress
) -> list[Row]:
    """All rows, each recorded as it comes: those that fail when they fail, those that are timed at the end.

    Raises InputError where no nvcc can compile, or the GPU is no card that is known, and CallFailed where the machine fails.
    """
    rows: list[Row] = []

    def keep(row: Row) -> None:
        record(row)
        rows.append(row)

    candidates = list(dict.fromkeys(candidates))
    with Session(keep, seed=options.seed, arch=options.arch, compilers=CompilePool(len(candidates))) as session:
        tickets = [session.add(candidate) for candidate in candidates]
        compile_added(session, tickets, progress)
        _mark_same_code(tickets)
        if options.peers != () and session.device is not None:
            tickets += _peers(session, candidates, options.peers)
        verify_pending(session, tickets, progress)
        timed = [ticket for ticket in tickets if not ticket.done]
        against = _pairs(timed, options.against)
        session.time(timed, options.rounds, progress, product=options.product, against=against)
    return rows


def compile_added(session: Session, tickets: Sequence[Ticket], progress: Progress) -> None:
    """Wait until all that was added, these tickets, is compiled; only peers can be added afterwards."""
    progress.phase("compile", sum(not ticket.refusal for ticket in tickets))
    for ticket in session.prepared():
        if not ticket.refusal:
            progress.advance(str(ticket.candidate))
    # Nothing else shall run, or hold memory of the GPU, while the others are timed.
    session.end_compiling()


def _mark_same_code(tickets: Sequence[Ticket]) -> None:
    """Name the first of the list with the same generated code, whichever was compiled first."""
    first_with: dict[tuple[str, str], str] = {}
    for ticket in tickets:
        candidate, fingerprint = ticket.candidate, ticket.row.fingerprint
        if fingerprint is not None:
            first = first_with.setdefault((fingerprint, candidate.shape.dtype), candidate.name)
            ticket.update(same_code_as=first if first != candidate.name else None)


def _pairs(tickets: Sequence[Ticket], against: Mapping[str, str]) -> dict[Ticket, Ticket]:
    """Each with the one of its problem that it is compared with."""
    named = {(ticket.candidate.shape, ticket.candidate.name): ticket for ticket in tickets}
    pairs = ((ticket, named.get((shape, against.get(name, "")))) for (shape, name), ticket in named.items())
    return {ticket: other for ticket, other in pairs if other}


def _peers(session: Session, candidates: Sequence[Candidate], names: Sequence[str] | None) -> list[Ticket]:
    """One of each for each problem."""
    of_problem = {candidate.shape: candidate for candidate in candidates}
    for candidate in of_problem.values():
        for peer in session.peers_of(candidate):
            if names is None or peer.name in names:
                session.add(peer)
    return list(session.prepared())


def verify_pending(session: Session, tickets: Sequence[Ticket], progress: Progress) -> None:
    """Verify those that are not done: on the GPU, or by the interpreter where there is none."""
    pending = [ticket for ticket in tickets if not ticket.done]
    progress.phase("interpret on the CPU" if session.device is None else "verify", len(pending))
    for ticket in pending:
        session.verify(ticket)
        progress.advance(str(ticket.candidate))
