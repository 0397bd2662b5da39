"""A rule says in YAML for which calls it is: its conditions are compared with a Case, the facts of one call."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, StrictBool, create_model
from pydantic_core import PydanticCustomError

from tl_attention.problem.card import CARDS, HOPPER, Arch
from tl_attention.problem.features import BY_WORD
from tl_attention.problem.head_dims import TILE_SIZES, HeadSize, TileSize, is_meant
from tl_attention.problem.mask import MASK_KINDS, MaskKind, kind_of
from tl_attention.problem.shape import DTYPES, AttentionShape, Dtype
from tl_attention.schedule.files import yaml_text
from tl_attention.schedule.files.schedule_file import each_once, one_line
from tl_attention.schedule.files.yaml_text import YamlFile, checked

# Longer than any tensor.
LONGEST = 2**62
N = "([0-9]{1,12})"
NUMBERS = re.compile(rf"up to {N}|from {N}|{N} to {N}")
# What a rule has for its record where there is none.
NONE_YET = "none yet"


class Case(NamedTuple):
    """A Case holds the facts of one call by which rules choose its schedule, or its backward."""

    head_size: HeadSize
    dtype: str
    mask: MaskKind
    seq_q: int
    seq_kv: int
    group: int  # heads of Q that share one of K
    asked: frozenset[str]  # the words of its features
    arch: str = HOPPER.arch  # of the card that it runs on
    packed: bool = False
    pages: bool = False  # whether a block table says where keys lie
    deterministic: bool = False  # whether a gradient must have the same bits twice

    @classmethod
    def of(cls, shape: AttentionShape, arch: str = HOPPER.arch) -> Case:
        """Returns the Case of a call with this problem on a card of this arch."""
        lengths, asked, lies = (
            (shape.seq_q, shape.seq_kv),
            frozenset(shape.asked),
            (shape.packed, bool(shape.page_size)),
        )
        return cls(shape.head_size, shape.dtype, kind_of(shape.mask), *lengths, shape.group, asked, arch, *lies)

    @property
    def facts(self) -> dict[str, Any]:
        """Returns a dict from each key that a rule may state a condition on to the case's value."""
        asked = (word in self.asked for word in BY_WORD)
        return dict(zip(KEYS, (*self[:5], self.rows, *asked, self.packed, self.pages, self.arch))) | {
            "square": self.seq_q == self.seq_kv,
            "seq_kv_mod_128": self.seq_kv % 128,
            "deterministic": self.deterministic,
        }

    @property
    def kind(self) -> Case:
        """Returns the case without its lengths and group, which stands for all cases that differ in these alone."""
        return self._replace(seq_q=1, seq_kv=1, group=1)

    @property
    def rows(self) -> int:
        """Returns how many queries read one head of K and V, those of all heads that share it."""
        return self.seq_q * self.group

    def __str__(self) -> str:
        numbers = (f"{key} {value}" for key, value in self._asdict().items() if key in ("seq_q", "seq_kv", "group"))
        asked = [*(word for word in BY_WORD if word in self.asked), *["packed"] * self.packed, *["pages"] * self.pages]
        card = [] if self.arch == HOPPER.arch else [str(CARDS[self.arch])]
        return ", ".join([*card, f"head_dim {self.head_size}", self.dtype, f"mask {self.mask}", *numbers, *asked])


# The keys of any rule that ask for something of a case.
FLAGS = (*BY_WORD, "packed", "pages")
LENGTH_KEYS = ("seq_q", "seq_kv", "rows")
KEYS = ("head_dims", "dtypes", "masks", *LENGTH_KEYS, *FLAGS, "archs")


def _numbers(text: object) -> range:
    match = NUMBERS.fullmatch(text) if isinstance(text, str) else None
    if match:
        numbers = range(int(match[2] or match[3] or 1), int(match[1] or match[4] or LONGEST) + 1)
        if numbers and numbers[0] > 0:
            return numbers
    raise PydanticCustomError("numbers", "expected `up to N`, `from N` or `N to N`, of numbers from 1 on")


Numbers = Annotated[range, PlainValidator(_numbers)]
ANY = range(1, LONGEST + 1)
Rules = TypeVar("Rules", bound="Conditions")
Line = Annotated[str, Field(min_length=1), AfterValidator(one_line)]


class Conditions(BaseModel):
    """Conditions say which calls a rule is for, one sentence why, and the record that shows it.

    A condition that is left out always holds, except `archs`: without it a rule is for Hopper.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    keys: ClassVar[tuple[str, ...]] = KEYS
    length_keys: ClassVar[tuple[str, ...]] = LENGTH_KEYS

    # Sizes of tiles. A smaller tensor has the next larger tile. K and V of two sizes that are not named together have
    # the larger one's.
    head_dims: Annotated[tuple[TileSize, ...], Field(min_length=1), AfterValidator(each_once)] = TILE_SIZES
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1), AfterValidator(each_once)] = DTYPES
    masks: Annotated[tuple[MaskKind, ...], Field(min_length=1), AfterValidator(each_once)] = MASK_KINDS
    seq_q: Numbers = ANY
    seq_kv: Numbers = ANY
    rows: Numbers = ANY
    archs: Annotated[tuple[Arch, ...], Field(min_length=1), AfterValidator(each_once)] = (HOPPER.arch,)
    why: Line
    record: Line

    def holds(self, key: str, value: Any) -> bool:
        """Says whether the rule's condition on a key, such as `seq_q`, holds for a case with this value."""
        wanted = getattr(self, key)
        if key == "head_dims":
            return is_meant(value, wanted)
        return value in wanted if isinstance(wanted, (range, tuple)) else wanted in (None, value)

    def unmet(self, case: Case) -> str | None:
        """Returns the key of the first of the rule's conditions that the case does not meet; None if it meets all."""
        facts = case.facts
        return next((key for key in self.keys if not self.holds(key, facts[key])), None)

    def condition(self, key: str) -> str:
        """Returns the rule's condition on this key in words, such as `seq_q up to 64`."""
        value = getattr(self, key)
        if isinstance(value, bool):
            return f"{key} {str(value).lower()}"
        if isinstance(value, range):
            return f"{key} {_words(value)}"
        return f"{key} {', '.join(map(str, value)) if isinstance(value, tuple) else value}"

    @property
    def conditions(self) -> list[str]:
        """Returns a list of the conditions that the rule states, each in words, without those left to a default."""
        return [self.condition(key) for key in self.keys if key in self.model_fields_set]

    @property
    def served(self) -> str:
        """Returns the rule's conditions, except that on the card, as one text in words; `any case` if there is none."""
        return ", ".join(words for words in self.conditions if not words.startswith("archs ")) or "any case"


def _words(numbers: range) -> str:
    first, last = numbers[0], numbers.stop - 1
    if last == LONGEST:
        return f"from {first}"
    return f"up to {last}" if first == 1 else f"{first} to {last}"


@dataclass(frozen=True)
class RuleFile(Generic[Rules]):
    """A RuleFile holds a YAML file and its rules. The first rule that serves a case counts."""

    file: YamlFile
    rules: tuple[Rules, ...]

    def find(self, case: Case, may: Callable[[Rules], bool] = lambda rule: True) -> int | None:
        """Returns the index of the first rule that may, and whose conditions a case meets; None where there is none.

        A length of 0 counts as 1.
        """
        facts = case._replace(seq_q=max(case.seq_q, 1), seq_kv=max(case.seq_kv, 1)).facts
        lengths = [(key, facts[key]) for key in self.rules[0].length_keys]
        of_kind = ((number, self.rules[number]) for number in self.by_kind(case.kind))
        return next((n for n, rule in of_kind if all(starmap(rule.holds, lengths)) and may(rule)), None)

    @functools.cached_property
    def by_kind(self) -> Callable[[Case], list[int]]:
        """Returns a function from a kind to the indexes of the rules that it meets, conditions on lengths left out."""

        def found(kind: Case) -> list[int]:
            facts, of = kind.facts, self.rules[0]
            others = [(key, facts[key]) for key in of.keys if key not in of.length_keys]
            return [number for number, rule in enumerate(self.rules) if all(starmap(rule.holds, others))]

        return functools.cache(found)

    def line(self, number: int) -> int:
        """Returns the number of the line on which the rule of this index begins in the file."""
        return self.file.line(("rules", number))


def read(path: Path, kind: type[Rules]) -> tuple[YamlFile, tuple[Rules, ...]]:
    """Reads a YAML file whose only key is `rules`, a list of one rule of this kind or more.

    A rule has a condition, true or false, for each of FLAGS besides its kind's fields. Returns the file and its rules.
    Raises InputError with `file:line: key: message`.
    """
    flags: Any = dict.fromkeys(FLAGS, (StrictBool | None, None))
    rule: Any = create_model("Rule", __base__=kind, **flags)
    config = ConfigDict(frozen=True, extra="forbid")
    keys = create_model("Keys", __config__=config, rules=(Annotated[tuple[rule, ...], Field(min_length=1)], ...))
    file = yaml_text.read(path)
    return file, checked(file, keys, file.fields).rules  # type: ignore[attr-defined]
