"""A call that names no schedule gets that of the first rule of defaults.yaml whose conditions all hold."""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, StrictBool, create_model
from pydantic_core import PydanticCustomError

from tl_attention.errors import InputError
from tl_attention.files import yaml_text
from tl_attention.files.named import resolve
from tl_attention.files.schedule_file import each_once, one_line
from tl_attention.files.yaml_text import YamlFile, checked
from tl_attention.hardware.card import CARDS, HOPPER, Arch
from tl_attention.problem.features import BY_WORD, mix_rows
from tl_attention.problem.head_dims import TILE_SIZES, HeadSize, TileSize, is_meant
from tl_attention.problem.mask import MASK_KINDS, Mask, MaskKind, fitted, is_window, kind_of
from tl_attention.problem.shape import DTYPES, AttentionShape, Dtype

FILE = Path(__file__).with_name("defaults.yaml")
# Problems for which the schedule is kept: a model has few, apart from its lengths.
MOST_KEPT = 4096
# Longer than any tensor.
LONGEST = 2**62
N = "([0-9]{1,12})"
NUMBERS = re.compile(rf"up to {N}|from {N}|{N} to {N}")
# What a rule has for its record where there is none.
NONE_YET = "none yet"


class Case(NamedTuple):
    """A Case holds the facts of one call by which the rules of defaults.yaml choose its schedule.

    That is its head size, dtype and mask, its lengths, the heads of Q that share a K, the words of its features, and
    the card that it runs on.
    """

    head_size: HeadSize
    dtype: str
    mask: MaskKind
    seq_q: int
    seq_kv: int
    group: int
    asked: frozenset[str]
    arch: str = HOPPER.arch
    packed: bool = False

    @classmethod
    def of(cls, shape: AttentionShape, arch: str = HOPPER.arch) -> Case:
        """Returns the Case of a call with this problem on a card of this arch."""
        lengths, asked = (shape.seq_q, shape.seq_kv), frozenset(shape.asked)
        return cls(shape.head_size, shape.dtype, kind_of(shape.mask), *lengths, shape.group, asked, arch, shape.packed)

    @property
    def values(self) -> tuple[Any, ...]:
        """Returns a tuple of the case's value for each key that a rule may state a condition on, in KEYS' order."""
        asked = (word in self.asked for word in BY_WORD)
        return (*self[:5], self.rows, *asked, self.packed, self.arch)

    @property
    def rows(self) -> int:
        """Returns how many queries read one head of K and V, those of all heads that share it."""
        return self.seq_q * self.group

    def __str__(self) -> str:
        numbers = (f"{key} {value}" for key, value in self._asdict().items() if key in ("seq_q", "seq_kv", "group"))
        asked = [*(word for word in BY_WORD if word in self.asked), *["packed"] * self.packed]
        card = [] if self.arch == HOPPER.arch else [str(CARDS[self.arch])]
        return ", ".join([*card, f"head_dim {self.head_size}", self.dtype, f"mask {self.mask}", *numbers, *asked])


# The keys of a rule that ask for something of a case.
FLAGS = (*BY_WORD, "packed")
LENGTH_KEYS = ("seq_q", "seq_kv", "rows")
# What is left of a window whose sides hide no key.
LEFT_OF_WINDOW: dict[MaskKind, MaskKind] = {"window": "full", "causal_window": "causal"}
KEYS = ("head_dims", "dtypes", "masks", *LENGTH_KEYS, *FLAGS, "archs")


def _numbers(text: object) -> range:
    found = NUMBERS.fullmatch(text) if isinstance(text, str) else None
    if found:
        numbers = range(int(found[2] or found[3] or 1), int(found[1] or found[4] or LONGEST) + 1)
        if numbers and numbers[0] > 0:
            return numbers
    raise PydanticCustomError("numbers", "expected `up to N`, `from N` or `N to N`, of numbers from 1 on")


Numbers = Annotated[range, PlainValidator(_numbers)]
ANY = range(1, LONGEST + 1)
Line = Annotated[str, Field(min_length=1), AfterValidator(one_line)]


class _Rule(BaseModel):
    """A rule names the schedule for calls that meet all its conditions, one sentence why, and the record that shows it.

    A condition that is left out always holds, except `archs`: without it a rule is for Hopper. `head_dims` are sizes of
    tiles. A smaller tensor has the next larger tile; K and V of two sizes that are not named together have the larger
    one's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    head_dims: Annotated[tuple[TileSize, ...], Field(min_length=1), AfterValidator(each_once)] = TILE_SIZES
    dtypes: Annotated[tuple[Dtype, ...], Field(min_length=1), AfterValidator(each_once)] = DTYPES
    masks: Annotated[tuple[MaskKind, ...], Field(min_length=1), AfterValidator(each_once)] = MASK_KINDS
    seq_q: Numbers = ANY
    seq_kv: Numbers = ANY
    rows: Numbers = ANY
    archs: Annotated[tuple[Arch, ...], Field(min_length=1), AfterValidator(each_once)] = (HOPPER.arch,)
    schedule: Line
    why: Line
    record: Line

    def holds(self, key: str, value: Any) -> bool:
        """Says whether the rule's condition on a key, such as `seq_q`, holds for a case with this value."""
        wanted = getattr(self, key)
        if key == "head_dims":
            return is_meant(value, wanted)
        return wanted in (None, value) if key in FLAGS else value in wanted

    def unmet(self, case: Case) -> str | None:
        """Returns the key of the first of the rule's conditions that the case does not meet; None if it meets all."""
        return next((key for key, value in zip(KEYS, case.values) if not self.holds(key, value)), None)

    def condition(self, key: str) -> str:
        """Returns the rule's condition on this key in words, such as `seq_q up to 64`."""
        value = getattr(self, key)
        if isinstance(value, bool):
            return f"{key} {str(value).lower()}"
        return f"{key} {_words(value) if isinstance(value, range) else ', '.join(map(str, value))}"

    @property
    def conditions(self) -> list[str]:
        """Returns a list of the conditions that the rule states, each in words, without those left to a default."""
        return [self.condition(key) for key in KEYS if key in self.model_fields_set]

    @property
    def asks_lengths(self) -> bool:
        """Says whether the rule has a condition on lengths."""
        return not self.model_fields_set.isdisjoint(LENGTH_KEYS)

    def alike(self, other: _Rule) -> bool:
        """Says whether the schedules of both rules compute a row alike, of as many keys as both rules are for."""
        return _alike(self.schedule, other.schedule, min(self.seq_kv[-1], other.seq_kv[-1]))

    @property
    def served(self) -> str:
        """Returns the rule's conditions, except that on the card, as one text in words; `any case` if there is none."""
        return ", ".join(words for words in self.conditions if not words.startswith("archs ")) or "any case"


Rule = create_model("Rule", __base__=_Rule, __doc__=_Rule.__doc__, **dict.fromkeys(FLAGS, (StrictBool | None, None)))  # type: ignore


def _words(numbers: range) -> str:
    first, last = numbers[0], numbers.stop - 1
    if last == LONGEST:
        return f"from {first}"
    return f"up to {last}" if first == 1 else f"{first} to {last}"


class _Keys(BaseModel):
    """This model holds a file of default rules, whose only key is `rules`, a list of one rule or more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Defaults:
    """Defaults hold a file and its rules, which choose the schedule of a call that names none.

    The first rule that serves a case counts.
    """

    file: YamlFile
    rules: tuple[Rule, ...]

    def number(self, case: Case, invariant: bool = False) -> int:
        """Returns the index of the first rule whose conditions a case meets. Raises InputError where it meets none.

        An `invariant` case passes over rules whose schedule computes rows otherwise than that of any length does. Every
        case on Hopper has a rule.
        """
        key = self._told_as(case), invariant
        if key not in self._found:
            wanted = self.of_any_length(case) if invariant else None
            self._found[key] = self.find(case, lambda rule: wanted is None or rule.alike(wanted))
        found = self._found[key]
        if found is None:
            served = dict.fromkeys(rule.served for rule in self.rules if case.arch in rule.archs)
            expected = "; or ".join([*served, "a schedule by its name"])
            raise InputError(f"attention: no default schedule serves {case}, expected {expected}")
        return found

    @functools.cached_property
    def _found(self) -> dict[tuple[Case, bool], int | None]:
        """Returns the indexes that were found, by case and whether invariant: a cache of keys grows by new lengths only."""
        return {}

    @functools.cached_property
    def _edges(self) -> dict[int, tuple[list[int], list[int]]]:
        """Returns, by how many heads share K and V, the numbers of queries and of keys that the rules tell apart."""
        return {}

    def _told_as(self, case: Case) -> Case:
        """Returns the case of the fewest queries and keys that no rule tells from this one."""
        if case.group not in self._edges:
            self._edges[case.group] = queries(self.rules, case.group), edges(self.rules, "seq_kv")
        first_of, least = self._edges[case.group], (case.seq_q, case.seq_kv)
        seq_q, seq_kv = (of[max(bisect_right(of, n) - 1, 0)] for of, n in zip(first_of, least))
        return case._replace(seq_q=seq_q, seq_kv=seq_kv)

    def find(self, case: Case, may: Callable[[_Rule], bool] = lambda rule: True) -> int | None:
        """Returns the index of the first rule that may, and whose conditions a case meets; None where there is none."""
        found = (number for number, rule in enumerate(self.rules) if rule.unmet(case) is None and may(rule))
        return next(found, None)

    def of_any_length(self, case: Case) -> Rule | None:
        """Returns the first rule that serves the case and asks for no lengths; None if there is none."""
        number = self.find(case, lambda rule: not rule.asks_lengths)
        return None if number is None else self.rules[number]

    def same_bits(self, case: Case) -> bool:
        """Says whether a case's rows have the same bits at all lengths anyhow, but those whose keys may be in parts.

        A window's must have them also where it is left out, as it is as long as the keys.
        """
        if mix_rows(BY_WORD[word] for word in case.asked):
            return False
        masks = {case.mask, LEFT_OF_WINDOW.get(case.mask, case.mask)}
        return all(self._alike_at_all_lengths(case._replace(mask=mask)) for mask in masks)

    def _alike_at_all_lengths(self, case: Case) -> bool:
        wanted = self.of_any_length(case)
        lengths = itertools.product(queries(self.rules, case.group), edges(self.rules, "seq_kv"))
        numbers = {self.number(case._replace(seq_q=q, seq_kv=kv)) for q, kv in lengths}
        whole = (self.rules[number] for number in numbers if not self.in_parts(number, case))
        return wanted is not None and all(rule.alike(wanted) for rule in whole)

    def in_parts(self, number: int, case: Case) -> bool:
        """Says whether the schedule of the rule of this index may compute the case's keys in parts."""
        return _has_parts(self.rules[number].schedule)

    def line(self, number: int) -> int:
        """Returns the number of the line on which the rule of this index begins in the file."""
        return self.file.line(("rules", number))


@functools.cache
def _alike(schedule: str, other: str, most_keys: int) -> bool:
    own, others = (resolve(name).schedule.arithmetic(most_keys) for name in (schedule, other))
    return own == others


@functools.cache
def _has_parts(schedule: str) -> bool:
    return resolve(schedule).schedule.kernel.part_blocks is not None


@functools.lru_cache(MOST_KEPT)
def _same_bits(case: Case) -> bool:
    return defaults().same_bits(case)


@functools.lru_cache(MOST_KEPT)
def _alike_at_any_length(case: Case, other: Case) -> bool:
    own, others = (defaults().of_any_length(of) for of in (case, other))
    return own is not None and others is not None and own.alike(others)


def computed(
    shape: AttentionShape, arch: str, invariant: bool | None, by_rules: bool = True
) -> tuple[AttentionShape, bool]:
    """Returns (the problem that a kernel computes for a call, whether the kernel is an invariant one).

    With `invariant` None that is where it costs nothing, and keys are not in parts; the default rules only count where
    they choose the schedule.
    The problem has no side of the mask that hides no key, unless rows would be computed otherwise by the rules' schedule
    for what is left. Packed sequences keep both sides, as any may be longest.
    """
    case = _of_any_length(shape, arch)
    if invariant is None:
        invariant = _same_bits(case) and not _in_parts(shape, arch) if by_rules else not mix_rows(shape.asked.features)
    if not shape.packed and is_window(shape.mask):
        mask = fitted(shape.mask, shape.seq_q, shape.seq_kv)
        # Where the right side must stay for its schedule, the left one need not.
        for left_out in (replace(shape, mask=mask), replace(shape, mask=Mask(mask.left, shape.mask.right))):
            if not (invariant and by_rules) or _alike_at_any_length(case, _of_any_length(left_out, arch)):
                return left_out, invariant
    return shape, invariant


def _in_parts(shape: AttentionShape, arch: str) -> bool:
    found, case = defaults(), Case.of(shape, arch)
    return found.in_parts(found.number(case), case)


def _of_any_length(shape: AttentionShape, arch: str) -> Case:
    # A cache of keys that grows makes a new problem with each token, but not a new case.
    return Case.of(shape, arch)._replace(seq_q=1, seq_kv=1)


@functools.lru_cache(MOST_KEPT)
def default_schedule(shape: AttentionShape, arch: str = HOPPER.arch, invariant: bool = False) -> str:
    """Returns the name of the schedule that the default rules choose for a problem on a card of this arch.

    An `invariant` one computes rows as that for any length does. Raises InputError where they choose none.
    """
    found = defaults()
    return found.rules[found.number(Case.of(shape, arch), invariant)].schedule


def default_schedules(shape: AttentionShape, arch: str = HOPPER.arch, invariant: bool = False) -> list[str]:
    """Returns the names of all schedules that the default rules choose for the problem at some seq_q and seq_kv.

    Each comes once, and the schedule of the shortest lengths comes first. Raises InputError where a card has none
    for some length.
    """
    found, case = defaults(), Case.of(shape, arch)
    # Each range of lengths that no rule tells apart is tried at its fewest rows and its most keys: where a mask hides
    # later keys, there are only so many rows that see one.
    rows, keys = queries(found.rules, shape.group), [*(edge - 1 for edge in edges(found.rules, "seq_kv")[1:]), LONGEST]
    lengths = [(q, kv) for q in rows for kv in keys if shape.mask.right is None or q <= kv + shape.mask.right]
    numbers = (found.number(case._replace(seq_q=q, seq_kv=kv), invariant) for q, kv in lengths)
    return list(dict.fromkeys(found.rules[number].schedule for number in numbers))


@functools.cache
def defaults() -> Defaults:
    """Returns the default rules that ship, read from defaults.yaml once in a process.

    A test sees that they serve every case, each some, by schedules that are meant for it.
    """
    return read(FILE)


def read(path: Path) -> Defaults:
    """Reads a YAML file of default rules as Defaults. Raises InputError with `file:line: key: message`."""
    file = yaml_text.read(path)
    return Defaults(file, checked(file, _Keys, file.fields).rules)


def queries(rules: Sequence[Rule], group: int) -> list[int]:
    """Returns, sorted, such numbers of queries, where so many heads share K and V, that no rule tells apart two between."""
    return sorted({*edges(rules, "seq_q"), *(-(-edge // group) for edge in edges(rules, "rows"))})


def edges(rules: Sequence[Rule], key: str) -> list[int]:
    """Returns, sorted, 1 and all numbers that begin a rule's range for `key` or follow the last number of one.

    No rule tells two values of the key apart that lie between two neighbours of these.
    """
    ranges = [getattr(rule, key) for rule in rules]
    found = {1, *(edge for numbers in ranges for edge in (numbers.start, numbers.stop))}
    return sorted(edge for edge in found if edge <= LONGEST)
