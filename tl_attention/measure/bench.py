"""Times many candidates beside each other: compiles all, verifies all, then samples all in turn in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compile_pool import CompilePool
from tl_attention.measure.progress import Progress
from tl_attention.measure.records import Row
from tl_attention.measure.session import ROUNDS, Session
from tl_attention.measure.ticket import Ticket


@dataclass(frozen=True)
class Options:
    """How the candidates are verified and timed. `seed`, of the inputs, is fresh by default; `arch` is that of the card that
    they are compiled for, by default the one at hand."""

    rounds: int = ROUNDS
    with_peers: bool = True
    seed: int | None = None
    arch: str | None = None


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
        _compile(session, tickets, progress)
        if options.with_peers and session.device is not None:
            tickets += _peers(session, candidates)
        _verify(session, tickets, progress)
        session.time([ticket for ticket in tickets if not ticket.done], options.rounds, progress)
    return rows


def _compile(session: Session, tickets: Sequence[Ticket], progress: Progress) -> None:
    progress.phase("compile", sum(not ticket.refusal for ticket in tickets))
    for ticket in session.prepared():
        if not ticket.refusal:
            progress.advance(str(ticket.candidate))
    # Nothing else shall run, or hold memory of the GPU, while the others are timed.
    session.end_compiling()
    _mark_same_code(tickets)


def _mark_same_code(tickets: Sequence[Ticket]) -> None:
    """Name the first of the list with the same generated code, whichever was compiled first."""
    first_with: dict[tuple[str, str], str] = {}
    for ticket in tickets:
        candidate, fingerprint = ticket.candidate, ticket.row.fingerprint
        if fingerprint is not None:
            first = first_with.setdefault((fingerprint, candidate.shape.dtype), candidate.name)
            ticket.update(same_code_as=first if first != candidate.name else None)


def _peers(session: Session, candidates: Sequence[Candidate]) -> list[Ticket]:
    """One of each for each problem."""
    of_problem = {candidate.shape: candidate for candidate in candidates}
    for candidate in of_problem.values():
        for peer in session.peers_of(candidate):
            session.add(peer)
    return list(session.prepared())


def _verify(session: Session, tickets: Sequence[Ticket], progress: Progress) -> None:
    pending = [ticket for ticket in tickets if not ticket.done]
    progress.phase("interpret on the CPU" if session.device is None else "verify", len(pending))
    for ticket in pending:
        session.verify(ticket)
        progress.advance(str(ticket.candidate))
