"""A file of cells: groups of problems that differ in their lengths and masks, each with its peers and bars."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, create_model
from pydantic_core import PydanticCustomError

from tl_attention.errors import InputError
from tl_attention.files import yaml_text
from tl_attention.files.yaml_text import YamlFile, blamed, checked
from tl_attention.measure.cell import Cell, check_peer, schedule_for
from tl_attention.problem.features import FEATURES
from tl_attention.problem.head_dims import SUPPORTED, HeadSize, parse_head_size, sizes_of
from tl_attention.problem.shape import DTYPE_NAMES, AttentionShape
from tl_attention.problem.window import OPEN, masked
from tl_attention.schedule.key_words import KeyPath


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
    """All but the features."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    heads: Length
    heads_kv: Length | None = None
    head_dim: Annotated[Any, BeforeValidator(_head_size)]
    seq: Annotated[tuple[Length, ...], Field(min_length=1)]
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
    __doc__="Some problems: a cell for each of `seq` and of `causal`. batch is tokens / seq unless it is given.",
    **FEATURE_KEYS,
)


class CellsKeys(BaseModel):
    """All groups, by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Length = 32768
    groups: Annotated[dict[Name, dict[str, Any]], Field(min_length=1)]


def load_cells(path: Path) -> list[Cell]:
    """The cells of a file, in its order. Raises InputError with `file:line: key: message`."""
    file = yaml_text.read(path)
    keys = checked(file, CellsKeys, file.fields)
    groups = {name: checked(file, GroupKeys, fields, "groups", name) for name, fields in keys.groups.items()}
    return [cell for name, group in groups.items() for cell in _cells(file, name, group, keys.tokens)]


def _cells(file: YamlFile, name: str, group: _GroupKeys, tokens: int) -> Iterator[Cell]:
    where: KeyPath = ("groups", name)
    for peer in group.peers:
        with_key: KeyPath = (*where, "peers", peer)
        try:
            check_peer(peer)
        except InputError as error:
            raise blamed(file, with_key, str(error)) from None
    for seq, causal in product(group.seq, group.causal):
        if group.batch is None and tokens % seq:
            raise blamed(file, (*where, "seq"), f"{seq} does not divide the {tokens} tokens, expected batch beside it")
        try:
            shape = _shape(group, seq, causal, group.batch or tokens // seq)
        except InputError as error:
            raise blamed(file, where, str(error)) from None
        try:
            schedule_for(shape, group.schedule).refuse_unmeant(shape.head_size)
        except InputError as error:
            raise blamed(file, (*where, "schedule"), str(error)) from None
        yield Cell(name, shape, group.peers, group.schedule, group.mean)


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
