"""A cell of the operator's benchmark is one problem, its peers, and how fast our kernel must be. Files hold cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, create_model
from pydantic_core import PydanticCustomError

from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import Candidate, called, tiling_of
from tl_attention.lab.measure.device import card_at_hand
from tl_attention.problem.features import FEATURES
from tl_attention.problem.head_dims import SUPPORTED, HeadSize, is_meant, parse_head_size, sizes_of
from tl_attention.problem.mask import CAUSAL, FULL, OPEN, masked
from tl_attention.problem.shape import DTYPE_NAMES, AttentionShape
from tl_attention.problem.tiling import visited_over_visible
from tl_attention.program.planned import Planned
from tl_attention.schedule.files import yaml_text
from tl_attention.schedule.files.defaults import computed_problem, default_schedule
from tl_attention.schedule.files.named import Named, resolve_forward
from tl_attention.schedule.files.yaml_text import YamlFile, blamed, checked
from tl_attention.schedule.key_words import KeyPath

# Entries: what attention() runs, and what that is compared with.
OURS = "ours"
# Peers that are our own kernels: without a mask, without the LSE, for packed sequences of one length as a batch, for
# tensors that lie as (batch, seq, heads, head_dim), where a row's bits may depend on others, beside which ours is
# invariant, for keys one behind the other instead of in pages, and, before a schedule's name, with that schedule.
UNMASKED, WITHOUT_LSE, DENSE, BSHD, NOT_INVARIANT = "unmasked", "without_lse", "dense", "bshd", "not_invariant"
CONTIGUOUS = "contiguous"
SCHEDULE = "ours:"
OTHERS = ("fa3", "cudnn", "flash2")
OWN = (UNMASKED, WITHOUT_LSE, DENSE, BSHD, NOT_INVARIANT, CONTIGUOUS)
PEERS_TEXT = f"{', '.join((*OTHERS, *OWN))} or {SCHEDULE}SCHEDULE"


@dataclass(frozen=True)
class Cell:
    """A cell is one problem of the benchmark, with the peers to time it against and the speeds that are asked for."""

    group: str
    shape: AttentionShape
    # The lowest speed that is asked for, our rate as a part of each peer's, or None where there is no such bar. The
    # first peer is entered twice, which shows the repeatability.
    peers: Mapping[str, float | None]
    schedule: str | None = None  # by default the one that attention() takes
    mean: float | None = None  # the bar of the group's geometric mean against the first peer
    lengths: str = ""
    graph: bool = False  # calls are timed in a CUDA graph, not one by one

    @property
    def name(self) -> str:
        """Returns the cell's name, made of its group, its number of keys and its mask, such as `d128-4k-causal`.

        Packed sequences have the name of their lengths instead of a number.
        """
        seq = self.shape.seq_kv
        length = self.lengths or (f"{seq // 1024}k" if seq % 1024 == 0 else str(seq))
        return f"{self.group}-{length}{'-causal' if self.shape.mask == CAUSAL else ''}"


@dataclass(frozen=True)
class Entry:
    """An entry is a candidate that is timed in a cell, under its name in tables."""

    name: str
    candidate: Candidate


def schedule_for(shape: AttentionShape, schedule: str | None = None, invariant: bool = False) -> Named:
    """Returns the named schedule or, without a name, the one that attention() takes for the problem on this GPU."""
    return resolve_forward(schedule or default_schedule(shape, card_at_hand().arch, invariant))


def entries(cell: Cell, others: Sequence[Named] = ()) -> Iterator[Entry]:
    """Yields the entries to time in a cell, our kernel first, then `others` meant for its head size, then its peers."""
    invariant = NOT_INVARIANT in cell.peers
    named = schedule_for(cell.shape, cell.schedule, invariant)
    yield Entry(OURS, replace(_kernel(named, cell.shape), invariant=invariant))
    for other in others:
        if is_meant(cell.shape.head_size, other.head_dims):
            yield Entry(other.name, _kernel(other, cell.shape))
    for peer in cell.peers:
        yield Entry(peer, _peer(peer, cell))


def _peer(name: str, cell: Cell) -> Candidate:
    shape = cell.shape
    if name in OWN:
        # The schedule that attention() takes for that problem, which need not be that of ours.
        if name == NOT_INVARIANT:
            shape, _ = computed_problem(shape, card_at_hand().arch, invariant=False)
        elif name == DENSE:
            shape = replace(shape.as_batch(), lengths=() if len(shape.distinct_lengths) == 1 else shape.lengths)
        elif name == CONTIGUOUS:
            shape = replace(shape, page_size=0)
        elif name == UNMASKED:
            shape = replace(shape, mask=FULL)
        elif name == WITHOUT_LSE:
            shape = shape.asking(lse=False)
        # The dense kernel's numbers lie in memory as those of the packed sequences do.
        return replace(_kernel(schedule_for(shape, cell.schedule), shape), strided=name in (DENSE, BSHD))
    if name.startswith(SCHEDULE):
        return _kernel(resolve_forward(name.removeprefix(SCHEDULE)), shape)
    # None of these has keys in pages here: they get the same keys one behind the other.
    return Candidate(name, replace(shape, page_size=0))


def _kernel(named: Named, shape: AttentionShape) -> Candidate:
    return called(named.name, shape, Planned(named.schedule))


def check_peer(name: str) -> None:
    """Raises InputError unless the name is a known peer's, or `ours:` and then the name of a schedule."""
    if name.startswith(SCHEDULE):
        resolve_forward(name.removeprefix(SCHEDULE))
    elif name not in (*OTHERS, *OWN):
        raise InputError(f"{name[:40]!r} is no peer, expected {PEERS_TEXT}")


def visited(candidate: Candidate) -> float | None:
    """Returns how many (query, key) pairs the kernel computes for each visible pair; None where there is no Program."""
    planned = candidate.planned
    if planned is None or planned.program is None:
        return None
    # A cluster's tiles visit the same KV blocks.
    tiling = tiling_of(planned)
    rows = candidate.variant.rows_of(tiling.block_M) * tiling.cluster
    return visited_over_visible(candidate.shape, rows, tiling.block_N, tiling.least_blocks)


def _head_size(value: object) -> HeadSize:
    try:
        return parse_head_size(str(value))
    except ValueError:
        raise PydanticCustomError("head_dim", f"expected {SUPPORTED}, or two of them: 192/128") from None


Length = Annotated[StrictInt, Field(ge=1)]
Side = Annotated[StrictInt, Field(ge=OPEN)]
Bar = Annotated[float, Field(gt=0, le=10)]
Name = Annotated[str, Field(pattern=r"^\w+$")]


class _GroupKeys(BaseModel):
    """A _GroupKeys holds the keys of a group of cells in a file, without the keys of features, which GroupKeys adds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: Length
    heads_kv: Length | None = None
    head_dim: Annotated[Any, BeforeValidator(_head_size)]
    seq: tuple[Length, ...] = ()
    lengths: dict[Name, str] = {}
    seq_q: Length | None = None
    batch: Length | None = None
    dtype: Literal["fp16", "bf16"] = "bf16"
    causal: Annotated[tuple[StrictBool, ...], Field(min_length=1)] = (False,)
    window: tuple[Side, Side] = (OPEN, OPEN)
    schedule: str | None = None
    peers: Annotated[dict[str, Bar | None], Field(min_length=1)]
    mean: Bar | None = None


FEATURE_KEYS: dict[str, Any] = {f.word: (float if f.is_number else StrictBool, f.off) for f in FEATURES}
GroupKeys = create_model(
    "GroupKeys",
    __base__=_GroupKeys,
    __doc__="Some problems: a cell for each of `seq`, or of the named `lengths` of packed sequences, and of `causal`. batch is "
    "tokens / seq unless it is given.",
    **FEATURE_KEYS,
)


class CellsKeys(BaseModel):
    """A CellsKeys holds the groups of cells of a file, by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Length = 32768  # of a cell whose group gives no batch
    graph: StrictBool = False  # calls are timed in a CUDA graph, not one by one
    groups: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]


def load_cells(path: Path) -> list[Cell]:
    """Reads the cells of a file, in the file's order. Raises InputError with `file:line: key: message`."""
    file = yaml_text.read(path)
    keys = checked(file, CellsKeys, file.fields)
    groups = {name: checked(file, GroupKeys, fields, "groups", name) for name, fields in keys.groups.items()}
    cells = (cell for name, group in groups.items() for cell in _cells(file, name, group, keys.tokens))
    return [replace(cell, graph=keys.graph) for cell in cells]


def _cells(file: YamlFile, name: str, group: _GroupKeys, tokens: int) -> Iterator[Cell]:
    where: KeyPath = ("groups", name)
    for peer in group.peers:
        with_key: KeyPath = (*where, "peers", peer)
        try:
            check_peer(peer)
        except InputError as error:
            raise blamed(file, with_key, str(error)) from None
    if bool(group.seq) == bool(group.lengths):
        raise blamed(file, where, "expected either seq, numbers of keys, or lengths, those of packed sequences by name")
    for (of, text), causal in product(group.lengths.items(), group.causal):
        yield _cell(file, where, (*where, "lengths", of), group, of, partial(_packed, group, text, causal))
    for seq, causal in product(group.seq, group.causal):
        if group.batch is None and tokens % seq:
            raise blamed(file, (*where, "seq"), f"{seq} does not divide the {tokens} tokens, expected batch beside it")
        make = partial(_shape, group, seq, causal, group.batch or tokens // seq)
        yield _cell(file, where, where, group, "", make)


def _cell(
    file: YamlFile, group_at: KeyPath, at: KeyPath, group: _GroupKeys, lengths: str, make: Callable[[], AttentionShape]
) -> Cell:
    """Makes a cell of a group from its shape, or raises InputError with a line of the file, the shape's at `at`."""
    try:
        shape = make()
    except InputError as error:
        raise blamed(file, at, str(error)) from None
    try:
        schedule_for(shape, group.schedule).refuse_unmeant(shape.head_size)
    except InputError as error:
        raise blamed(file, (*group_at, "schedule"), str(error)) from None
    return Cell(str(group_at[-1]), shape, group.peers, group.schedule, group.mean, lengths)


def _packed(group: _GroupKeys, lengths: str, causal: bool) -> AttentionShape:
    heads = f"{group.heads}/{group.heads_kv or group.heads}"
    window = ",".join(map(str, group.window))
    asked = {word: getattr(group, word) for word in FEATURE_KEYS}
    text = f"{lengths if {*'x+'}.intersection(lengths) else f'1x{lengths}'},{heads},{group.head_dim}"
    return AttentionShape.parse(text, dtype=group.dtype, causal=causal, window=window, **asked)


def _shape(group: _GroupKeys, seq: int, causal: bool, batch: int) -> AttentionShape:
    head_dim, head_dim_v = sizes_of(group.head_dim)
    shape = AttentionShape(
        batch,
        group.heads,
        group.seq_q or seq,
        seq,
        head_dim,
        DTYPE_NAMES[group.dtype],
        masked(causal, group.window),
        head_dim_v,
        group.heads_kv or 0,
    )
    return shape.asking(**{word: getattr(group, word) for word in FEATURE_KEYS})
