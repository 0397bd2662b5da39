"""Chooses a configuration: leaves out what cannot be the fastest, and times what is left beside each other, tile by tile.

with Session(results.append) as session:
    found = choose(list(space()), shape, session)
print(found.counts, found.best[0].name)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

from tl_attention.configurations.as_schedule import schedule_of
from tl_attention.configurations.configuration import Configuration
from tl_attention.errors import InputError
from tl_attention.hardware.card import Card
from tl_attention.hardware.device import card_of_arch
from tl_attention.measure.bench import compile_added, verify_pending
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.progress import SILENT, Progress
from tl_attention.measure.records import Row
from tl_attention.measure.session import ROUNDS, ROUNDS_AGAINST, Session
from tl_attention.measure.ticket import Ticket
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

# Of a thread: half of what its registers hold. What spills more waits for it in every iteration.
MOST_STACK_BYTES = 512


@dataclass(frozen=True)
class Counts:
    """How many configurations there were, and what became of them.

    `refused` are those that do not fit an SM, or are not safe, before anything is compiled; `failed` those that the
    compiler, or the proof of the generated code, refused. Of the `compiled` ones `spilling` have too much stack, `roomless`
    do not fit an SM as compiled, and `same_code` are another one's machine code: ptxas moves the loads of fragments.
    `verified` are right, on the GPU or, without one, by the interpreter.
    """

    space: int
    refused: int
    failed: int
    compiled: int
    spilling: int
    roomless: int
    same_code: int
    verified: int
    timed: int

    def __str__(self) -> str:
        words = {"space": "in the space", "roomless": "without room on an SM", "same_code": "the same code as another"}
        return ", ".join(f"{getattr(self, f.name)} {words.get(f.name, f.name)}" for f in fields(self))


@dataclass(frozen=True)
class Choice:
    """What was found. `rows` has one row of each configuration, in the order of the space; `best` that of each tile's
    fastest, fastest first, of times that were taken beside each other."""

    counts: Counts
    rows: tuple[Row, ...]
    best: tuple[Row, ...]


Fate = Literal["refused", "failed", "spilling", "roomless", "same_code", "measured"]


@dataclass
class _Entry:
    """A configuration on its way. `fate` is what pruning decided."""

    configuration: Configuration
    ticket: Ticket
    fate: Fate = "measured"


def choose(
    configurations: Sequence[Configuration],
    shape: AttentionShape,
    session: Session,
    *,
    rounds: int = ROUNDS,
    rounds_of_best: int = ROUNDS_AGAINST,
    most_stack_bytes: int = MOST_STACK_BYTES,
    progress: Progress = SILENT,
) -> Choice:
    """The fastest configuration of each tile, for this problem, on the session's card.

    Each configuration is one row, recorded as the session has it; the best of the tiles have a second one, of the run in
    which they were timed beside each other by `rounds_of_best`. What has more than `most_stack_bytes` of stack a thread is
    not timed, nor what another one's machine code is. Without a GPU of the card nothing is timed. The session can compile nothing
    afterwards.

    Raises InputError for a configuration of another head_dim than the problem's, or that is no schedule; CallFailed where
    the machine fails.
    """
    card = card_of_arch(session.arch)
    candidates = {one: _candidate(one, shape, card) for one in configurations}
    entries = [_Entry(one, session.add(candidate)) for one, candidate in candidates.items()]
    tickets = [entry.ticket for entry in entries]
    compile_added(session, tickets, progress)
    _prune(entries, session, card, most_stack_bytes)
    verify_pending(session, tickets, progress)
    groups: dict[tuple[int, ...], list[Ticket]] = {}
    for entry in entries:
        groups.setdefault(entry.configuration.tile, []).append(entry.ticket)
    for group in groups.values():
        session.time([ticket for ticket in group if not ticket.done], rounds, progress)
    rows = tuple(entry.ticket.row for entry in entries)
    counts = _counts(entries)
    best = [fastest for group in groups.values() if (fastest := _fastest(group))]
    session.time(best, rounds_of_best, progress)
    ranked = sorted((ticket for ticket in best if ticket.is_verified), key=_ms)
    return Choice(counts, rows, tuple(ticket.row for ticket in ranked))


def _candidate(configuration: Configuration, shape: AttentionShape, card: Card) -> Candidate:
    if shape.head_size != configuration.head_dim:
        raise InputError(
            f"{configuration}: head_dim {configuration.head_dim}, expected {shape.head_size} as of {shape}"
        )
    return Candidate(str(configuration), shape, Planned(schedule_of(configuration)), sms=card.sms, arch=card.arch)


def _prune(entries: Sequence[_Entry], session: Session, card: Card, most_stack_bytes: int) -> None:
    """Decide each one's fate: what is left out is done."""
    first_with: dict[str, str] = {}
    for entry in entries:
        ticket, row = entry.ticket, entry.ticket.row
        if row.fingerprint is None:
            entry.fate = "refused" if ticket.refusal else "failed"
        elif ticket.done:
            continue
        elif reason := _spills(row, most_stack_bytes):
            _leave_out(entry, "spilling", reason, session)
        elif reason := _has_no_room(entry.configuration, row, card):
            _leave_out(entry, "roomless", reason, session)
        elif first := first_with.get(code := row.machine_code or row.fingerprint):
            ticket.update(same_code_as=first)
            _leave_out(entry, "same_code", f"the machine code is that of {first}", session)
        else:
            first_with[code] = row.name


def _leave_out(entry: _Entry, fate: Fate, reason: str, session: Session) -> None:
    entry.fate = fate
    session.leave_out(entry.ticket, reason)


def _spills(row: Row, most_stack_bytes: int) -> str:
    """Why it is not worth its time, "" where it may be."""
    if (row.stack_bytes or 0) <= most_stack_bytes:
        return ""
    return f"spills {row.stack_bytes:,} bytes a thread, expected {most_stack_bytes:,} at most"


def _has_no_room(configuration: Configuration, row: Row, card: Card) -> str:
    """Why no block of it fits an SM, "" where one does."""
    registers, shared_bytes = row.registers or 0, row.shared_bytes or 0
    if card.blocks_that_fit(configuration.threads, registers, shared_bytes):
        return ""
    return f"{configuration.threads} threads of {registers} registers, {shared_bytes:,} bytes: no block fits an SM of {card}"


def _fastest(group: Sequence[Ticket]) -> Ticket | None:
    timed = [ticket for ticket in group if ticket.is_verified and ticket.row.median_ms is not None]
    return min(timed, key=_ms, default=None)


def _ms(ticket: Ticket) -> float:
    assert ticket.row.median_ms is not None, "it was timed"
    return ticket.row.median_ms


def _counts(entries: Sequence[_Entry]) -> Counts:
    fates = [entry.fate for entry in entries]
    rows = [entry.ticket.row for entry in entries]
    return Counts(
        space=len(entries),
        refused=fates.count("refused"),
        failed=fates.count("failed"),
        compiled=sum(row.fingerprint is not None for row in rows),
        spilling=fates.count("spilling"),
        roomless=fates.count("roomless"),
        same_code=fates.count("same_code"),
        verified=sum(row.status == "checked_on_cpu" or row.verified_shapes > 0 for row in rows),
        timed=sum(row.median_ms is not None for row in rows),
    )
