"""`measure` times many candidates beside each other: it compiles all, verifies all, then samples all in turn.

One process samples them. `climb` does this for the steps of a ladder, and compares each step with the step that it goes
on from. `choose` searches a space of configurations: it leaves out those that cannot be the fastest, and times the
others tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from tl_attention.errors import InputError
from tl_attention.lab.files.ladder_file import Ladder
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.device import card_of_arch
from tl_attention.lab.measure.published import space
from tl_attention.lab.measure.records import MATMUL, Row, grouped
from tl_attention.lab.measure.session import ROUNDS, ROUNDS_AGAINST, Session, Ticket
from tl_attention.lab.measure.trials import SILENT, Progress
from tl_attention.problem.card import Card
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.configuration import Configuration, schedule_of
from tl_attention.schedule.files.named import Named

# Enough rounds for an interval of each step of a ladder: see `Comparison.interval`.
LADDER_ROUNDS = 9
# The stack of a thread: half of what its registers hold. A kernel that spills more waits for spills in every iteration.
MOST_STACK_BYTES = 512
Record = Callable[[Row], object]


def measure(
    candidates: Sequence[Candidate],
    record: Record,
    progress: Progress,
    *,
    rounds: int = ROUNDS,
    peers: Sequence[str] | None = None,
    seed: int | None = None,
    arch: str | None = None,
    product: str = MATMUL,
    against: Mapping[str, str] = MappingProxyType({}),
) -> list[Row]:
    """Compiles, verifies and times candidates and peers, and returns a row for each, recorded when it is complete.

    A candidate that fails is recorded when it fails, a candidate that is timed at the end. `peers` names the peers that
    are timed too where they can run the problem, None for all. `seed`, of the inputs, is fresh by default. `arch` is
    the arch of the card to compile for, by default the card at hand. `product` names the plain product whose rate is
    100 %. `against` says by name which candidate is compared with which, round by round.

    Raises InputError where no nvcc can compile, or the GPU is no known card, and CallFailed where the machine fails.
    """
    with Session(record, seed=seed, arch=arch) as session:
        tickets = session.compile(list(dict.fromkeys(candidates)), progress)
        _mark_same_code(tickets)
        if peers != () and session.device is not None:
            tickets += _peers(session, candidates, peers)
        session.verify_pending(tickets, progress)
        timed = [ticket for ticket in tickets if not ticket.done]
        session.time(timed, rounds, progress, product=product, against=against)
    return session.rows


def compile_alone(candidates: Sequence[Candidate], arch: str, record: Record, progress: Progress) -> list[Row]:
    """Compiles the candidates for an arch, and returns a row for each; nothing is timed.

    A row is `compiled`, `refused` or `compile_error`. It is recorded when its compilation ends. No GPU is needed.
    """
    progress.phase("compile tiles", len(candidates))
    # Nothing draws inputs here.
    with Session(record, seed=0, arch=arch) as session:
        for ticket in session.compiled([session.add(candidate) for candidate in candidates]):
            if not ticket.done:
                session.leave_out(ticket, "")
            progress.advance(ticket.candidate.name)
    return session.rows


def climb(
    ladder: Ladder,
    card: Card,
    record: Record,
    progress: Progress,
    *,
    rounds: int = LADDER_ROUNDS,
    seed: int | None = None,
) -> list[Row]:
    """Compiles a ladder's tiles, times its steps and peers, and returns a row for each.

    Each tile is compiled alone. Each step that has a schedule has a row under the step's name, and each peer that is
    there has one. Where the ladder chooses and times were taken, there is also a row for each configuration, and a
    second row for the best of each tile.

    Raises what `measure` raises.
    """

    def candidate(name: str, named: Named) -> Candidate:
        return Candidate(name, ladder.shape, Planned(named.schedule), ladder.fixed, card.sms, arch=card.arch)

    steps = [candidate(step.name, step.schedule) for step in ladder.steps if step.schedule]
    tiles = [candidate(tile.schedule.name, tile.schedule) for tile in ladder.tiles]
    # Before a GPU is asked for anything: compiling leaves it alone.
    rows = compile_alone(tiles, card.arch, record, progress) if tiles else []
    against = {step.name: step.against for step in ladder.steps if step.against}
    of_run: dict[str, Any] = {"rounds": rounds, "peers": tuple(ladder.peers), "seed": seed, "product": ladder.product}
    rows += measure(steps, record, progress, against=against, **of_run)
    # What is chosen is the fastest: without times there is nothing to choose.
    if ladder.choose and any(row.median_ms for row in rows):
        with Session(record, seed=seed, arch=card.arch) as session:
            for chosen in choose(list(space()), ladder.shape, session, progress=progress):
                rows += chosen
    return rows


def _mark_same_code(tickets: Sequence[Ticket]) -> None:
    """Sets each row's `same_code_as` to the first candidate before it with its generated code and dtype, or None."""
    first_with: dict[tuple[str, str], str] = {}
    for ticket in tickets:
        candidate, fingerprint = ticket.candidate, ticket.row.fingerprint
        if fingerprint is not None:
            first = first_with.setdefault((fingerprint, candidate.shape.dtype), candidate.name)
            ticket.update(same_code_as=first if first != candidate.name else None)


def _peers(session: Session, candidates: Sequence[Candidate], names: Sequence[str] | None) -> list[Ticket]:
    """Adds peers, `names` or all if None, to the session for each candidate's problem they may run; returns tickets."""
    shapes = dict.fromkeys(candidate.shape for candidate in candidates)
    peers = [peer for shape in shapes for peer in session.peers_of(shape)]
    return [session.add(peer) for peer in peers if names is None or peer.name in names]


def choose(
    configurations: Sequence[Configuration],
    shape: AttentionShape,
    session: Session,
    *,
    rounds: int = ROUNDS,
    rounds_of_best: int = ROUNDS_AGAINST,
    progress: Progress = SILENT,
) -> tuple[list[Row], list[Row]]:
    """Times configurations, then the fastest of each tile again, and returns (rows of all, rows of the fastest).

    They run this problem on the session's card. The first rows keep the order of the configurations. The other rows
    come fastest first: their times were taken beside each other, in a second run of `rounds_of_best` rounds.

    A configuration is not timed if it has more than MOST_STACK_BYTES of stack a thread, if it does not fit an SM as
    compiled, or if its machine code is that of an earlier one: ptxas moves the loads of fragments, so two
    configurations may end as one. Without a GPU of the card nothing is timed.

    Raises InputError for a configuration of another head_dim than the problem's, or that is no schedule; CallFailed
    where the machine fails.
    """
    card = card_of_arch(session.arch)
    configurations = list(dict.fromkeys(configurations))
    candidates = [_candidate(one, shape, card) for one in configurations]
    tickets = dict(zip(configurations, session.compile(candidates, progress)))
    _prune(tickets, session, card)
    session.verify_pending([*tickets.values()], progress)
    best: list[Ticket] = []
    for tile in grouped(tickets, lambda one: one.tile).values():
        group = [tickets[one] for one in tile]
        session.time([ticket for ticket in group if not ticket.done], rounds, progress)
        best += _fastest_first(group)[:1]
    rows = [ticket.row for ticket in tickets.values()]
    session.time(best, rounds_of_best, progress)
    return rows, [ticket.row for ticket in _fastest_first(best)]


def _candidate(configuration: Configuration, shape: AttentionShape, card: Card) -> Candidate:
    if shape.head_size != configuration.head_dim:
        raise InputError(
            f"{configuration}: head_dim {configuration.head_dim}, expected {shape.head_size} as of {shape}"
        )
    return Candidate(str(configuration), shape, Planned(schedule_of(configuration)), sms=card.sms, arch=card.arch)


def _prune(tickets: Mapping[Configuration, Ticket], session: Session, card: Card) -> None:
    """Completes, untimed, the rows of configurations that spill too much, fit no SM or repeat earlier machine code."""
    first_with: dict[str, str] = {}
    for configuration, ticket in tickets.items():
        row = ticket.row
        if ticket.done or row.fingerprint is None:
            continue
        code = row.machine_code or row.fingerprint
        if reason := _too_large(configuration, row, card):
            session.leave_out(ticket, reason)
        elif first := first_with.get(code):
            ticket.update(same_code_as=first)
            session.leave_out(ticket, f"the machine code is that of {first}")
        else:
            first_with[code] = row.name


def _too_large(configuration: Configuration, row: Row, card: Card) -> str:
    """Returns why a kernel spills too much to be timed or no block of it fits an SM, "" if neither is so."""
    threads, registers, shared_bytes = configuration.threads, row.registers or 0, row.shared_bytes or 0
    if (row.stack_bytes or 0) > MOST_STACK_BYTES:
        return f"spills {row.stack_bytes:,} bytes a thread, expected {MOST_STACK_BYTES:,} at most"
    if not card.blocks_that_fit(threads, registers, shared_bytes):
        return f"{threads} threads of {registers} registers, {shared_bytes:,} bytes: no block fits an SM of {card}"
    return ""


def _fastest_first(tickets: Sequence[Ticket]) -> list[Ticket]:
    """Returns the tickets that were verified and timed, fastest first."""
    timed = [ticket for ticket in tickets if ticket.is_verified and ticket.row.median_ms is not None]
    return sorted(timed, key=lambda ticket: ticket.row.median_ms or 0.0)
