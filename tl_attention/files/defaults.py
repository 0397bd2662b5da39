"""Which schedule serves a call that names none: that of the first rule of defaults.yaml whose conditions all hold."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from tl_attention.errors import InputError
from tl_attention.files import catalogue, yaml_text
from tl_attention.files.default_rule import EITHER, KEYS, LONGEST, Case, Rule
from tl_attention.files.named import resolve
from tl_attention.files.yaml_text import YamlFile, blamed
from tl_attention.hardware.card import ARCHS, HOPPER
from tl_attention.problem.features import BY_WORD
from tl_attention.problem.head_dims import TILE_SIZES, HeadSize, is_meant
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.problem.window import MASK_KINDS
from tl_attention.schedule.key_errors import first_error

FILE = Path(__file__).with_name("defaults.yaml")
# Of problems: a model has few, but for its lengths.
MOST_KEPT = 4096


class Rules(BaseModel):
    """The keys of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rules: Annotated[tuple[Rule, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Defaults:
    """Rules, of which the first that serves a case counts, and the file that they stand in."""

    file: YamlFile
    rules: tuple[Rule, ...]

    def number(self, case: Case) -> int:
        """The index of the rule that serves a case: every case on Hopper has one. Raises InputError where there is none."""
        found = self.find(case)
        if found is None:
            served = dict.fromkeys(rule.served for rule in self.rules if case.arch in rule.archs)
            expected = "; or ".join([*served, "a schedule by its name"])
            raise InputError(f"attention: no default schedule serves {case}, expected {expected}")
        return found

    def find(self, case: Case) -> int | None:
        """The same, None where there is none."""
        return next((number for number, rule in enumerate(self.rules) if rule.unmet(case) is None), None)

    def line(self, number: int) -> int:
        """The line of a rule in the file."""
        return self.file.line(("rules", number))


@functools.lru_cache(MOST_KEPT)
def default_schedule(shape: AttentionShape, arch: str = HOPPER.arch) -> str:
    """The name of the schedule that runs a problem on a card where none is asked for. Raises InputError where none does."""
    found = defaults()
    return found.rules[found.number(Case.of(shape, arch))].schedule


def default_schedules(shape: AttentionShape, arch: str = HOPPER.arch) -> list[str]:
    """The names of those that run a problem like it where none is asked for, whatever its lengths: first the shortest's.

    Raises InputError where a card has none for some length.
    """
    found, case = defaults(), Case.of(shape, arch)
    # Of each range of lengths that no rule tells apart the fewest rows, and the most keys: where a mask hides later keys,
    # there are only so many rows that see one.
    rows, keys = _edges(found.rules, "seq_q"), [*(edge - 1 for edge in _edges(found.rules, "seq_kv")[1:]), LONGEST]
    lengths = [(q, kv) for q in rows for kv in keys if shape.mask.right is None or q <= kv + shape.mask.right]
    numbers = (found.number(case._replace(seq_q=q, seq_kv=kv)) for q, kv in lengths)
    return list(dict.fromkeys(found.rules[number].schedule for number in numbers))


@functools.cache
def defaults() -> Defaults:
    """Those that ship. Tests hold them to what `load` checks, which reads every schedule that they name."""
    return _read(FILE)


def load(path: Path) -> Defaults:
    """Read a file of rules. Raises InputError with `file:line: key: message` unless they serve every case, each some."""
    found = _read(path)
    for number, rule in enumerate(found.rules):
        _check_schedule(found.file, number, rule)
    _check_together(found.file, found.rules)
    return found


def _read(path: Path) -> Defaults:
    file = yaml_text.read(path)
    try:
        return Defaults(file, Rules(**file.fields).rules)
    except ValueError as error:
        raise blamed(file, *first_error(error, Rules)) from None


def _check_schedule(file: YamlFile, number: int, rule: Rule) -> None:
    key = ("rules", number, "schedule")
    if catalogue.path_of(rule.schedule) is None:
        raise blamed(file, key, str(catalogue.unknown(rule.schedule)))
    named = resolve(rule.schedule)
    for size in rule.head_dims:
        if not is_meant(size, named.head_dims):
            raise blamed(file, key, f"{rule.schedule} {named.meant_for}, the rule is for {size} too")


def _check_together(file: YamlFile, rules: Sequence[Rule]) -> None:
    """Each case on Hopper has a rule, and each rule a case that none above it serves."""
    serving: set[int | None] = set()
    for case in _told_apart(rules):
        number = Defaults(file, tuple(rules)).find(case)
        if number is None and case.arch == HOPPER.arch:
            raise blamed(file, ("rules",), f"no rule serves {case}, expected one for every case")
        serving.add(number)
    for number in range(len(rules)):
        if number not in serving:
            raise blamed(file, ("rules", number), "never serves a case: the rules above it serve all of its own")


def _told_apart(rules: Sequence[Rule]) -> Iterator[Case]:
    """One case of each kind that the rules tell apart."""
    values: dict[str, Sequence[HeadSize]] = {"head_dims": TILE_SIZES, "dtypes": DTYPES, "masks": MASK_KINDS}
    values |= {"archs": ARCHS, **dict.fromkeys(BY_WORD, EITHER)}
    for key in ("seq_q", "seq_kv", "group"):
        values[key] = _edges(rules, key)
    return map(Case.with_values, itertools.product(*(_apart(rules, key, values[key]) for key in KEYS)))


def _edges(rules: Sequence[Rule], key: str) -> list[int]:
    """Of a key for numbers, the first of each range in which no rule tells any two apart."""
    ranges = [getattr(rule, key) for rule in rules]
    edges = {1, *(edge for numbers in ranges for edge in (numbers.start, numbers.stop))}
    return sorted(edge for edge in edges if edge <= LONGEST)


def _apart(rules: Sequence[Rule], key: str, values: Sequence[HeadSize]) -> Iterable[HeadSize]:
    """Of values for which all rules say the same, the first."""
    first: dict[tuple[bool, ...], HeadSize] = {}
    for value in values:
        first.setdefault(tuple(rule.holds(key, value) for rule in rules), value)
    return first.values()
