"""Compiles candidates and times none: what ptxas gave each of them, as rows. Needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compile_pool import CompilePool
from tl_attention.measure.records import Row
from tl_attention.measure.session import Session


def compiled(found: Sequence[Candidate], arch: str) -> Iterator[Row]:
    """A row for each candidate of an arch as its compilation ends: `compiled`, `refused` or `compile_error`."""
    refused: list[Row] = []
    # Nothing draws inputs here.
    with Session(refused.append, seed=0, arch=arch, compilers=CompilePool(len(found))) as session:
        for candidate in found:
            session.add(candidate)
        for ticket in session.prepared():
            yield ticket.row if ticket.done else replace(ticket.row, status="compiled")
