"""A call that names no schedule gets that of the first rule of defaults.yaml whose conditions all hold."""

from __future__ import annotations

import functools
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.problem.card import HOPPER
from tl_attention.problem.features import BY_WORD, mix_rows
from tl_attention.problem.mask import Mask, MaskKind, ceildiv, fitted, is_window
from tl_attention.problem.shape import AttentionShape
from tl_attention.schedule.files import conditions
from tl_attention.schedule.files.conditions import LENGTH_KEYS, LONGEST, Case, Conditions, Line, RuleFile
from tl_attention.schedule.files.named import resolve

FILE = Path(__file__).with_name("defaults.yaml")
# Problems for which the schedule is kept: a model has few, apart from its lengths.
MOST_KEPT = 4096
# What is left of a window whose sides hide no key.
LEFT_OF_WINDOW: dict[MaskKind, MaskKind] = {"window": "full", "causal_window": "causal"}


class DefaultRule(Conditions):
    """A rule names the schedule for calls that meet its conditions."""

    schedule: Line

    def alike(self, other: DefaultRule) -> bool:
        """Says whether the schedules of both rules compute a row alike, of as many keys as both rules are for."""
        return _alike(self.schedule, other.schedule, min(self.seq_kv[-1], other.seq_kv[-1]))


class Defaults(RuleFile[DefaultRule]):
    """Defaults are the rules that choose the schedule of a call that names none."""

    def choose(self, case: Case, invariant: bool = False) -> int:
        """Returns the index of the first rule whose conditions a case meets. Raises InputError where it meets none.

        An `invariant` case passes over rules whose schedule computes rows otherwise than that of any length does. Every
        case on Hopper has a rule.
        """
        wanted = self.rule_for_any_length(case) if invariant else None
        number = self.find(case, lambda rule: wanted is None or rule.alike(wanted))
        if number is None:
            served = dict.fromkeys(rule.served for rule in self.rules if case.arch in rule.archs)
            expected = "; or ".join([*served, "a schedule by its name"])
            raise InputError(f"attention: no default schedule serves {case}, expected {expected}")
        return number

    def rule_for_any_length(self, case: Case) -> DefaultRule | None:
        """Returns the first rule that serves the case and asks for no lengths; None if there is none.

        Keys in pages count as if they lay one behind the other: invariant calls of both have the same bits.
        """
        of_kind = (self.rules[number] for number in self.by_kind(case._replace(pages=False).kind))
        return next((rule for rule in of_kind if rule.model_fields_set.isdisjoint(LENGTH_KEYS)), None)

    def length_edges(self, case: Case) -> tuple[list[int], list[int]]:
        """Returns, sorted, (numbers of queries, numbers of keys) between which no rule distinguishes such cases."""
        # Where none serves the kind, a refusal still names lengths of some rule.
        return edges_of_lengths([self.rules[number] for number in self.by_kind(case.kind)] or self.rules, case.group)

    def same_bits(self, case: Case) -> bool:
        """Says whether a case's rows have the same bits at all lengths anyhow, but those whose keys may be in parts.

        A window's must have them also where it is left out, as it is as long as the keys.
        """
        if mix_rows(BY_WORD[word] for word in case.asked):
            return False
        masks = dict.fromkeys((case.mask, LEFT_OF_WINDOW.get(case.mask, case.mask)))
        return all(self._alike_at_all_lengths(case._replace(mask=mask)) for mask in masks)

    def _alike_at_all_lengths(self, case: Case) -> bool:
        wanted = self.rule_for_any_length(case)
        lengths = itertools.product(*self.length_edges(case))
        numbers = {self.choose(case._replace(seq_q=q, seq_kv=kv)) for q, kv in lengths}
        rules = (self.rules[number] for number in numbers)
        return wanted is not None and all(rule.alike(wanted) for rule in rules if not _has_parts(rule.schedule))


@functools.cache
def _alike(schedule: str, other: str, most_keys: int) -> bool:
    first, others = (resolve(name).schedule.arithmetic(most_keys) for name in (schedule, other))
    return first == others


@functools.cache
def _has_parts(name: str, packed: bool = False) -> bool:
    """Says whether the schedule of this name may compute keys in parts, or some sequences' among packed ones."""
    schedule = resolve(name).schedule
    return schedule.splits_sequences if packed else schedule.kernel.part_blocks is not None


@functools.lru_cache(MOST_KEPT)
def _same_bits(case: Case) -> bool:
    return defaults().same_bits(case)


def _alike_at_any_length(case: Case, other: Case) -> bool:
    first, others = (defaults().rule_for_any_length(of) for of in (case, other))
    return first is not None and others is not None and first.alike(others)


def computed_problem(
    shape: AttentionShape, arch: str, invariant: bool | None, by_rules: bool = True
) -> tuple[AttentionShape, bool]:
    """Returns (the problem that a kernel computes for a call, whether the kernel is an invariant one).

    With `invariant` None the kernel is invariant where that costs nothing, and keys are not in parts. The default rules
    only count where they choose the schedule.
    The problem has no side of the mask that hides no key, unless rows would be computed otherwise by the rules'
    schedule for what is left. Packed sequences keep both sides, as any may be longest.
    """
    case = Case.of(shape, arch)
    if invariant is None and by_rules:
        # A cache of keys that grows makes a new problem with each token, but not a new case.
        may_split = _has_parts(default_schedule(shape, arch), shape.packed)
        invariant = _same_bits(case._replace(seq_q=1, seq_kv=1)) and not may_split
    elif invariant is None:
        invariant = not mix_rows(shape.asked.features)
    if not shape.packed and is_window(shape.mask):
        mask = fitted(shape.mask, shape.seq_q, shape.seq_kv)
        # Where the right side must stay for its schedule, the left one need not.
        for left_out in (replace(shape, mask=mask), replace(shape, mask=Mask(mask.left, shape.mask.right))):
            if not (invariant and by_rules) or _alike_at_any_length(case, Case.of(left_out, arch)):
                return left_out, invariant
    return shape, invariant


@functools.lru_cache(MOST_KEPT)
def default_schedule(shape: AttentionShape, arch: str = HOPPER.arch, invariant: bool = False) -> str:
    """Returns the name of the schedule that the default rules choose for a problem on a card of this arch.

    An `invariant` one computes rows as that for any length does. Raises InputError where they choose none.
    """
    rules = defaults()
    return rules.rules[rules.choose(Case.of(shape, arch), invariant)].schedule


def default_schedules(shape: AttentionShape, arch: str = HOPPER.arch, invariant: bool = False) -> list[str]:
    """Returns the names of all schedules that the default rules choose for the problem at some seq_q and seq_kv.

    Each comes once, and the schedule of the shortest lengths comes first. Raises InputError where a card has none
    for some length.
    """
    rules, case = defaults(), Case.of(shape, arch)
    # Each range of lengths that no rule tells apart is tried at its fewest rows and its most keys: where a mask hides
    # later keys, there are only so many rows that see one.
    rows, first_keys = rules.length_edges(case)
    keys = [*(edge - 1 for edge in first_keys[1:]), LONGEST]
    lengths = [(q, kv) for q in rows for kv in keys if shape.mask.right is None or q <= kv + shape.mask.right]
    numbers = (rules.choose(case._replace(seq_q=q, seq_kv=kv), invariant) for q, kv in lengths)
    return list(dict.fromkeys(rules.rules[number].schedule for number in numbers))


@functools.cache
def defaults() -> Defaults:
    """Returns the default rules that ship, read from defaults.yaml once in a process.

    A test sees that they serve every case, each some, by schedules that are meant for it.
    """
    return read(FILE)


def read(path: Path) -> Defaults:
    """Reads a YAML file of default rules as Defaults. Raises InputError with `file:line: key: message`."""
    return Defaults(*conditions.read(path, DefaultRule))


def edges_of_lengths(rules: Sequence[DefaultRule], group: int) -> tuple[list[int], list[int]]:
    """Returns, sorted, (numbers of queries, numbers of keys) between which no rule distinguishes calls of a group."""
    rows = (ceildiv(edge, group) for edge in edges(rules, "rows"))
    return sorted({*edges(rules, "seq_q"), *rows}), edges(rules, "seq_kv")


@functools.cache
def _of_all_rules(group: int) -> tuple[list[int], list[int]]:
    return edges_of_lengths(defaults().rules, group)


def class_of_lengths(seq_q: int, seq_kv: int, group: int) -> tuple[int, int]:
    """Returns numbers that are equal for lengths that no default rule distinguishes, where `group` heads share K, V."""
    queries, keys = _of_all_rules(group)
    return bisect_right(queries, seq_q), bisect_right(keys, seq_kv)


def edges(rules: Sequence[DefaultRule], key: str) -> list[int]:
    """Returns, sorted, 1 and all numbers that begin a rule's range for `key` or follow the last number of one.

    No rule tells two values of the key apart that lie between two neighbours of these.
    """
    ranges = [getattr(rule, key) for rule in rules]
    starts = {1, *(edge for numbers in ranges for edge in (numbers.start, numbers.stop))}
    return sorted(edge for edge in starts if edge <= LONGEST)
