"""A table lists the statements of a loop: what each reads, writes and is, and what follows for the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, Literal

StatementKind = Literal["load", "product", "vector"]
Place = Literal["ring", "resident", "fragment"]
Identity = Literal["copy", "zero", "maximum"]


@dataclass(frozen=True)
class Statement:
    """A Statement is one line of a loop's body, with its kind and the buffers that it reads and writes."""

    name: str
    # A `load` is asynchronous and fills a ring buffer. A `product` may be in flight after it was issued. A `vector`
    # statement is done when the next one starts.
    kind: StatementKind
    reads: tuple[str, ...]  # buffers of the kernel
    writes: tuple[str, ...]  # likewise
    formula: str
    code: str  # the interpreter's name for what it computes
    boundary_only: bool = False  # whether it runs only for blocks that may have hidden keys
    columns: tuple[int, int] | None = None  # first column and end of a chunk, None for a whole statement
    first_chunk_reads: tuple[str, ...] = ()  # what only the first chunk reads
    later_chunks_read: tuple[str, ...] = ()  # what all other chunks read besides
    of_block: bool = False  # whether it writes another value for every KV block, whatever it reads, as a load does
    constant: str | None = None  # the value that it writes, if that is always the same
    # When it passes an input on unchanged, to the bit: a `copy` its first, `zero` its first where that is 0, a
    # `maximum` the one beside -inf.
    identity: Identity | None = None


def statement(
    kind: StatementKind, name: str, reads: str, writes: str, formula: str, code: str = "", **facts: Any
) -> Statement:
    """Returns a Statement; `reads` and `writes` are buffers separated by blanks, and `code` is the name by default."""
    facts["of_block"] = facts.get("of_block", False) or kind == "load"
    return Statement(name, kind, tuple(reads.split()), tuple(writes.split()), formula, code or name, **facts)


@dataclass(frozen=True)
class Buffer:
    """A Buffer is a tile or a row vector that statements read or write: where it lies, and how large it is.

    `rows` and `columns` are numbers, or name sizes of a tile: block_M, block_N, head_dim or head_dim_v.
    """

    name: str
    # A `ring` in shared memory is loaded again for every KV block. What is `resident` there is loaded once a tile, for
    # each warpgroup its rows. A `fragment` is in registers of the threads that compute.
    place: Place
    rows: str | int
    columns: str | int
    bytes: int  # of an element
    # The option in `kernel` that says where products read it: a fragment is in `shared` memory instead, a resident tile
    # in `registers` too.
    operand: str = ""

    @property
    def symbol(self) -> str:
        return symbol(self.name)

    @property
    def load(self) -> str:
        """Returns the name of what loads a resident tile, such as load_q, which its release has, too."""
        return f"load_{self.symbol.lower()}"

    def places(self, options: Any) -> tuple[str, ...]:
        """Returns "shared", "registers" or both, where the buffer is with these options of `kernel`."""
        chosen = (getattr(options, self.operand),) if self.operand else ()
        if self.place == "fragment":
            return chosen or ("registers",)
        return tuple(dict.fromkeys(("shared", *chosen)))

    def elements(self, sizes: Mapping[str | int, int]) -> int:
        """Returns how many elements it has, from the sizes of the tile by name."""
        return sizes.get(self.rows, 1) * sizes.get(self.columns, 1)


def row_vectors(*names: str) -> tuple[Buffer, ...]:
    """Returns fp32 fragments of these names with a number for each row of the tile."""
    return tuple(Buffer(name, "fragment", "block_M", 1, 4) for name in names)


@dataclass(frozen=True)
class Table:
    """A table has the statements of one kernel's loop, in source order, and the buffers that they read and write.

    Schedules name the statements of their loop in `loops.LOOPS`, of which some are fused or moved here.
    """

    statements: tuple[Statement, ...]
    buffers: tuple[Buffer, ...] = ()
    initial: Mapping[str, str] = field(default_factory=dict, hash=False)  # buffers' values before the loop
    output: tuple[str, ...] = ()  # the buffers that the code after the loop reads
    # Statements that can be cut into chunks (`exp.0`), with the buffers whose columns are cut, too (`acc_s[0:48]`).
    splittable: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    fused: Mapping[str, str] = field(default_factory=dict, hash=False)  # statements that are part of another one
    # Statements that run right before another one, wherever the schedule has them.
    moved: Mapping[str, str] = field(default_factory=dict, hash=False)
    # By name of a tensor that the kernel stores, the accumulators that go there; {} where the kernel does more to them.
    stored: Mapping[str, str] = field(default_factory=dict, hash=False)
    rows: str = "queries"  # what the rows of a tile are
    columns: str = "keys"  # and those of a block, of which there is one for each iteration
    addresses: int = 0  # registers that ptxas needs beside the fragments, where that is known
    slotted: tuple[str, ...] = ()  # buffers whose chunks share registers
    slots: Mapping[str, int] = field(default_factory=dict, hash=False)  # how many chunks there is room for (`slots.py`)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(statement.name for statement in self.statements)

    @cached_property
    def number(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def by_name(self) -> dict[str, Statement]:
        return {statement.name: statement for statement in self.statements}

    @cached_property
    def loads(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.statements if s.kind == "load")

    @cached_property
    def products(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.statements if s.kind == "product")

    @cached_property
    def rings(self) -> dict[str, str]:
        """Returns a dict from the name of each ring's buffer to the load that fills it.

        Every other buffer has one version.
        """
        return {buffer: load for load in self.loads for buffer in self.by_name[load].writes}

    def ring_of(self, load: str) -> str:
        """Returns the name of the buffer that a load fills; of the first, if row vectors come with it."""
        return self.by_name[load].writes[0]

    @cached_property
    def accumulators(self) -> tuple[str, ...]:
        """Returns the names of the tiles that products write in fp32."""
        return tuple(b.name for b in self.buffers if b.place == "fragment" and b.bytes == 4 and b.columns != 1)

    @cached_property
    def residents(self) -> tuple[Buffer, ...]:
        """Returns the tiles that are loaded once, before the loop."""
        return tuple(buffer for buffer in self.buffers if buffer.place == "resident")

    def cut_size(self, statement: str) -> str | int:
        """Returns the name of the size that the columns of a statement's chunks add up to, such as block_N."""
        cut = self.splittable[statement]
        return next(buffer.columns for buffer in self.buffers if buffer.name in cut)

    def loads_of(self, name: str) -> tuple[str, ...]:
        """Returns the names of the loads whose buffers a statement reads."""
        return tuple(self.rings[buffer] for buffer in self.by_name[name].reads if buffer in self.rings)

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """Returns the names of the statements that read each load's buffer, in source order, by load."""
        return {load: tuple(name for name in self.names if load in self.loads_of(name)) for load in self.loads}

    @cached_property
    def inputs(self) -> frozenset[str]:
        """Returns the names of the buffers that the loop reads and never writes."""
        written = {buffer for s in self.statements for buffer in s.writes}
        return frozenset(buffer for s in self.statements for buffer in s.reads) - written

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Returns the names of the buffers that the code after the loop reads, or of their chunks if they are cut."""
        written = dict.fromkeys(buffer for statement in self.statements for buffer in statement.writes)
        return tuple(buffer for buffer in written if whole(buffer) in self.output)


def symbol(buffer: str) -> str:
    """Returns the name of a buffer without its place, such as K for K_shared."""
    return buffer.removesuffix("_shared")


def whole(name: str) -> str:
    """Returns the name of the statement or buffer that a chunk belongs to, `exp` for exp.0, `acc_s` for acc_s[0:48]."""
    return name.partition(".")[0].partition("[")[0]


def chunk_names(statement: str, columns: tuple[int, ...] | None) -> tuple[str, ...]:
    """Returns the names of a statement's chunks, or its own name alone if `columns` is None."""
    return (statement,) if columns is None else tuple(f"{statement}.{index}" for index in range(len(columns)))


def split_table(table: Table, split: Mapping[str, tuple[int, ...]]) -> Table:
    """Returns the table with each statement that `split` names cut into chunks of the widths given there."""
    segments: dict[str, list[tuple[int, int]]] = {}
    # What the loop finds written is whole.
    cut = dict.fromkeys(
        buffer for buffers in table.splittable.values() for buffer in buffers if buffer not in table.inputs
    )
    for buffer in cut:
        ends = {end for name, widths in split.items() if buffer in table.splittable[name] for end in accumulate(widths)}
        if ends:
            segments[buffer] = list(pairwise([0, *sorted(ends)]))

    def touched(name: str, buffers: tuple[str, ...], columns: tuple[int, int] | None) -> Iterator[str]:
        for buffer in buffers:
            if buffer not in segments:
                yield buffer
            # Columns of the buffers that are cut with it: of others it touches all.
            within = columns if buffer in table.splittable.get(name, ()) else None
            for first, end in segments.get(buffer, ()):
                if within is None or (within[0] <= first and end <= within[1]):
                    yield f"{buffer}[{first}:{end}]"

    statements: list[Statement] = []
    for s in table.statements:
        widths = split.get(s.name)
        edges = (0, *accumulate(widths or ()))
        for index, name in enumerate(chunk_names(s.name, widths)):
            columns = (edges[index], edges[index + 1]) if widths else None
            later = (*(b for b in s.reads if b not in s.first_chunk_reads), *s.later_chunks_read)
            reads = later if index else s.reads
            statements.append(
                replace(
                    s,
                    name=name,
                    columns=columns,
                    reads=tuple(touched(s.name, reads, columns)),
                    writes=tuple(touched(s.name, s.writes, columns)),
                    formula=s.formula + (f", columns {columns[0]} to {columns[1]}" if columns else ""),
                )
            )
    return replace(table, statements=tuple(statements))
