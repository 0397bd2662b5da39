"""One rule of defaults.yaml: the cases that it serves, the schedule that runs them, and why."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, create_model
from pydantic_core import PydanticCustomError

from tl_attention.files.schedule_file import each_once, one_line
from tl_attention.hardware.card import CARDS, HOPPER, Arch
from tl_attention.problem.features import BY_WORD
from tl_attention.problem.head_dims import TILE_SIZES, HeadSize, TileSize, is_meant
from tl_attention.problem.shape import DTYPES, AttentionShape, Dtype
from tl_attention.problem.window import MASK_KINDS, MaskKind, kind_of
from tl_attention.shipped import folder

# Longer than any tensor.
LONGEST = 2**62
N = "([0-9]{1,12})"
NUMBERS = re.compile(rf"up to {N}|from {N}|{N} to {N}")
NONE_YET = "none yet"
RECORD = re.compile(r"([\w.-]+\.jsonl) says .+")


class Case(NamedTuple):
    """What rules ask for of a call: its head size, dtype and mask, its lengths, the heads of Q that share a K, the words
    of its features, and the card that it runs on."""

    head_size: HeadSize
    dtype: str
    mask: MaskKind
    seq_q: int
    seq_kv: int
    group: int
    asked: frozenset[str]
    arch: str = HOPPER.arch

    @classmethod
    def of(cls, shape: AttentionShape, arch: str = HOPPER.arch) -> Case:
        """That of a problem on a card."""
        lengths, asked = (shape.seq_q, shape.seq_kv), frozenset(shape.asked)
        return cls(shape.head_size, shape.dtype, kind_of(shape.mask), *lengths, shape.group, asked, arch)

    @classmethod
    def with_values(cls, values: Sequence[Any]) -> Case:
        """The case with these values for KEYS."""
        of = dict(zip(KEYS, values))
        asked = frozenset(word for word in BY_WORD if of[word])
        size, dtype, mask, seq_q, seq_kv, group = values[:6]
        return cls(size, dtype, mask, seq_q, seq_kv, group, asked, of["archs"])

    @property
    def values(self) -> tuple[Any, ...]:
        """Its values for KEYS, in their order."""
        return (*self[:6], *(word in self.asked for word in BY_WORD), self.arch)

    def __str__(self) -> str:
        numbers = (f"{key} {value}" for key, value in self._asdict().items() if key in ("seq_q", "seq_kv", "group"))
        asked = (word for word in BY_WORD if word in self.asked)
        card = [] if self.arch == HOPPER.arch else [str(CARDS[self.arch])]
        return ", ".join([*card, f"head_dim {self.head_size}", self.dtype, f"mask {self.mask}", *numbers, *asked])


# The keys of a rule that ask for something of a case.
KEYS = ("head_dims", "dtypes", "masks", "seq_q", "seq_kv", "group", *BY_WORD, "archs")


def _numbers(text: object) -> range:
    found = NUMBERS.fullmatch(text) if isinstance(text, str) else None
    if found:
        numbers = range(int(found[2] or found[3] or 1), int(found[1] or found[4] or LONGEST) + 1)
        if numbers and numbers[0] > 0:
            return numbers
    raise PydanticCustomError("numbers", "expected `up to N`, `from N` or `N to N`, of numbers from 1 on")


def _record(text: str) -> str:
    found = RECORD.fullmatch(text)
    if text != NONE_YET and not (found and (folder("results") / found[1]).is_file()):
        raise PydanticCustomError("record", "expected `none yet`, or `FILE.jsonl says ...` of a file in results/")
    return text


def _flag(value: object) -> tuple[bool]:
    if isinstance(value, bool):
        return (value,)
    raise PydanticCustomError("flag", "expected true or false")


Numbers = Annotated[range, PlainValidator(_numbers)]
Flag = Annotated[tuple[bool, ...], PlainValidator(_flag)]
Line = Annotated[str, Field(min_length=1), AfterValidator(one_line)]
ANY = range(1, LONGEST + 1)
EITHER = (False, True)


class _Rule(BaseModel):
    """Conditions, all of which must hold, a schedule, one sentence why, and the record that says so.

    A condition that is left out always holds, but for `archs`: without it a rule is for Hopper. `head_dims` are those of
    tiles: a smaller tensor has the next larger one, and K and V of two sizes that are not named together have that of the
    larger.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    head_dims: Annotated[tuple[TileSize, ...], Field(min_length=1), AfterValidator(each_once)] = TILE_SIZES
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1), AfterValidator(each_once)] = DTYPES
    masks: Annotated[tuple[MaskKind, ...], Field(min_length=1), AfterValidator(each_once)] = MASK_KINDS
    seq_q: Numbers = ANY
    seq_kv: Numbers = ANY
    group: Numbers = ANY
    archs: Annotated[tuple[Arch, ...], Field(min_length=1), AfterValidator(each_once)] = (HOPPER.arch,)
    schedule: Line
    why: Line
    record: Annotated[Line, AfterValidator(_record)]

    def holds(self, key: str, value: Any) -> bool:
        """Whether the condition of a key holds for this value of a case."""
        return is_meant(value, self.head_dims) if key == "head_dims" else value in getattr(self, key)

    def unmet(self, case: Case) -> str | None:
        """The key of the first condition that does not hold; None if the rule serves the case."""
        return next((key for key, value in zip(KEYS, case.values) if not self.holds(key, value)), None)

    def condition(self, key: str) -> str:
        """A condition in words: `seq_q up to 64`."""
        value = getattr(self, key)
        if value in ((False,), (True,)):
            return f"{key} {str(value[0]).lower()}"
        return f"{key} {_words(value) if isinstance(value, range) else ', '.join(map(str, value))}"

    @property
    def conditions(self) -> list[str]:
        """All that the rule has, in words."""
        return [self.condition(key) for key in KEYS if key in self.model_fields_set]

    @property
    def served(self) -> str:
        """The cases that it serves on its cards, in words."""
        return ", ".join(words for words in self.conditions if not words.startswith("archs ")) or "any case"


Rule = create_model("Rule", __base__=_Rule, __doc__=_Rule.__doc__, **dict.fromkeys(BY_WORD, (Flag, EITHER)))  # type: ignore


def _words(numbers: range) -> str:
    first, last = numbers[0], numbers.stop - 1
    if last == LONGEST:
        return f"from {first}"
    return f"up to {last}" if first == 1 else f"{first} to {last}"
