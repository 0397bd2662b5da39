"""defaults.yaml says which schedule serves a call that names none, and `explain --call` shows the rule."""

import itertools
import random
import re
import timeit
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from conftest import ROOT

from tl_attention.errors import InputError
from tl_attention.kernels.preflight import check_limits
from tl_attention.problem.card import ARCHS, CARDS, HOPPER
from tl_attention.problem.features import BY_WORD
from tl_attention.problem.head_dims import TILE_SIZES, is_meant, sizes_of
from tl_attention.problem.mask import CAUSAL, FULL, MASK_KINDS, Mask, kind_of
from tl_attention.problem.shape import DTYPES, AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files import defaults
from tl_attention.schedule.files.conditions import FLAGS, KEYS, LONGEST, NONE_YET, Case
from tl_attention.schedule.files.defaults import (
    FILE,
    DefaultRule,
    computed_problem,
    default_schedule,
    default_schedules,
)
from tl_attention.schedule.files.named import resolve

# Line 2: short queries; line 8: others of the same size.
RULES = """\
rules:
  - head_dims: [64, 128]
    seq_q: up to 64
    seq_kv: from 1024
    schedule: seed_64x128
    why: a tile of 64 rows does not idle
    record: none yet
  - head_dims: [64, 128]
    schedule: best
    why: the fastest
    record: grid-h200.jsonl says something
  - {head_dims: [96], schedule: d96, why: its own, record: none yet}
  - {head_dims: [192/128], schedule: d192_128, why: its own, record: none yet}
  - {head_dims: [192], schedule: d192, why: its own, record: none yet}
  - {head_dims: [256], schedule: d256, why: its own, record: none yet}
"""


@pytest.fixture
def rules(tmp_path):
    """Gives a function that reads the rules above, with one text replaced."""

    def read(old: str = "", new: str = "") -> defaults.Defaults:
        assert not old or RULES.count(old) == 1, f"{old!r} must stand in the rules exactly once"
        path = tmp_path / "rules.yaml"
        path.write_text(RULES.replace(old, new) if old else RULES)
        return defaults.read(path)

    return read


def problem(seq_q: int, seq_kv: int, head_dim: int = 128, mask: Mask = FULL, **others) -> AttentionShape:
    return AttentionShape(2, 8, seq_q, seq_kv, head_dim, mask=mask, **others)


# --- which rule serves a case -----------------------------------------------------------------------------------------


def test_the_first_rule_whose_conditions_all_hold_serves_a_case(rules) -> None:
    found = rules()
    for seq_q, seq_kv, head_dim, name in (
        (64, 1024, 128, "seed_64x128"),
        (1, 9000, 40, "seed_64x128"),
        (0, 1024, 128, "seed_64x128"),
        (65, 1024, 128, "best"),
        (64, 1023, 128, "best"),
        (64, 1024, 96, "d96"),
    ):
        case = Case.of(problem(seq_q, seq_kv, head_dim))
        assert found.rules[found.choose(case)].schedule == name, case


@pytest.mark.parametrize(
    "condition, serves, other",
    [
        ("dtypes: [bfloat16]", problem(9, 9, dtype="bfloat16"), problem(9, 9)),
        ("masks: [window]", problem(9, 9, mask=Mask(3, 3)), problem(9, 9, mask=Mask(3, 0))),
        ("masks: [causal_window]", problem(9, 9, mask=Mask(3, 0)), problem(9, 9, mask=CAUSAL)),
        ("masks: [full, causal]", problem(9, 9, mask=CAUSAL), problem(9, 9, mask=Mask(None, 3))),
        ("rows: from 10", problem(9, 9, heads_kv=4), problem(9, 9)),
        ("rows: 36 to 72", problem(9, 9, heads_kv=2), problem(9, 9, heads_kv=4)),
        ("seq_q: 8 to 10", problem(10, 99), problem(11, 99)),
    ],
)
def test_every_condition_tells_cases_apart(rules, condition, serves, other) -> None:
    found = rules("seq_q: up to 64\n    seq_kv: from 1024", condition)
    assert [found.choose(Case.of(shape)) for shape in (serves, other)] == [0, 1]
    assert found.rules[0].conditions == ["head_dims 64, 128", re.sub(r"[][:]", "", condition)]


@pytest.mark.parametrize("condition, value", [("softcap", 30.0), ("lse", True)])
def test_what_is_optional_tells_cases_apart(rules, condition, value) -> None:
    found = rules("seq_q: up to 64\n    seq_kv: from 1024", f"{condition}: true")
    cases = [Case.of(problem(9, 9).asking(**asked)) for asked in ({}, {condition: value}, {"sinks": True})]
    assert [found.choose(case) for case in cases] == [1, 0, 1] and str(cases[1]).endswith(f"group 1, {condition}")
    assert found.rules[0].conditions == ["head_dims 64, 128", f"{condition} true"]


def test_a_rule_is_for_hopper_unless_it_names_cards(rules) -> None:
    found = rules("seq_q: up to 64\n    seq_kv: from 1024", "seq_q: up to 8\n    archs: [sm_86, sm_90a]")
    served = [found.find(Case.of(problem(8, 9), arch)) for arch in ("sm_86", "sm_90a", "sm_89")]
    assert served == [0, 0, None]
    assert found.rules[0].conditions == ["head_dims 64, 128", "seq_q up to 8", "archs sm_86, sm_90a"]
    words = (
        "attention: no default schedule serves sm_86 (RTX 3090), head_dim 128, float16, mask full, seq_q 9, seq_kv 9, "
        "group 1, expected head_dims 64, 128, seq_q up to 8; or a schedule by its name"
    )
    with pytest.raises(InputError, match=f"^{re.escape(words)}$"):
        found.choose(Case.of(problem(9, 9), "sm_86"))
    with pytest.raises(InputError, match="group 1, expected a schedule by its name$"):
        found.choose(Case.of(problem(9, 9), "sm_89"))


def test_an_invariant_case_takes_the_first_schedule_that_computes_rows_as_that_of_any_length(rules) -> None:
    case = Case.of(problem(64, 1024))
    assert [rules().choose(case, invariant) for invariant in (False, True)] == [0, 1]
    # Equal keys in a block, and an order of their own: the chunks of a sum come one behind the other.
    found = rules("seed_64x128", "ragged")
    assert [found.choose(case, invariant) for invariant in (False, True)] == [0, 0]


def test_every_mask_is_of_one_kind() -> None:
    kinds = {mask: kind_of(mask) for mask in itertools.starmap(Mask, itertools.product((None, 0, 7), repeat=2))}
    assert set(kinds.values()) == set(MASK_KINDS)
    assert {kinds[Mask(right=0)], kinds[Mask(7, 0)], kinds[Mask(7, 7)]} == {"causal", "causal_window", "window"}
    assert [mask for mask, kind in kinds.items() if "causal" in kind] == [m for m in kinds if m.right == 0]


# --- what a file of rules may not be ----------------------------------------------------------------------------------

# Replace this in the rules above by this; then the line, and what the message says.
MISTAKES = {
    "unknown key": ("seq_q", "seqq", 3, "rules[0].seqq: unknown key, did you mean seq_q? Expected one of head_dims, d"),
    "no key": ("    why: the fastest\n", "", 8, "rules[1].why: the key is missing"),
    "head size": ("[96]", "[100]", 12, "rules[2].head_dims[0]: expected 64, 96, 128, 192, '192/128' or 256, found 100"),
    "head size twice": ("[96]", "[96, 96]", 12, "rules[2].head_dims: expected each once"),
    "neither true nor false": ("seq_q: up to 64", "lse: 1", 3, "rules[0].lse: expected true or false, found 1"),
    "a number": (
        "up to 64",
        "64",
        3,
        "seq_q: expected `up to N`, `from N` or `N to N`, of numbers from 1 on, found 64",
    ),
    "numbers from 0": ("up to 64", "0 to 64", 3, "of numbers from 1 on, found '0 to 64'"),
    "numbers backwards": ("up to 64", "64 to 1", 3, "found '64 to 1'"),
    "no numbers": ("up to 64", "up to 0", 3, "found 'up to 0'"),
    "two lines of why": ("why: the fastest", 'why: "a\\nb"', 10, "rules[1].why: expected one line of printable text"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_rules_is_told_in_one_line_with_file_and_line(name, rules, tmp_path) -> None:
    old, new, line, words = MISTAKES[name]
    with pytest.raises(InputError) as error:
        rules(old, new)
    message = str(error.value)
    assert message.startswith(f"{tmp_path}/rules.yaml:{line}: ") and words in message and "\n" not in message, message


# --- the file that ships ----------------------------------------------------------------------------------------------


def test_it_ships_with_the_package_and_is_no_schedule(cli) -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert FILE in [path for pattern in packaged["tl_attention.schedule.files"] for path in FILE.parent.glob(pattern)]
    assert "defaults" not in cli("list", "--all").stdout


def told_apart(rules: Sequence[DefaultRule]) -> Iterator[Case]:
    """Yields one case of each kind that the rules tell apart: of values for which all rules say the same, the first."""
    values: dict[str, Sequence[Any]] = {"head_dims": TILE_SIZES, "dtypes": DTYPES, "masks": MASK_KINDS, "archs": ARCHS}
    values |= {key: defaults.edges(rules, key) for key in ("seq_q", "seq_kv", "rows")}
    values |= dict.fromkeys(FLAGS, (False, True))
    apart: dict[str, dict[tuple[bool, ...], Any]] = {key: {} for key in KEYS}
    for key, first in apart.items():
        for value in values[key]:
            first.setdefault(tuple(rule.holds(key, value) for rule in rules), value)
    for *first, rows, softcap, sinks, lse, packed, pages, arch in itertools.product(
        *(of.values() for of in apart.values())
    ):
        if pages and not packed:
            continue
        asked = frozenset(word for word, there in zip(BY_WORD, (softcap, sinks, lse)) if there)
        yield Case(*first, -(-rows // first[3]), asked, arch, packed, pages)


def test_the_rules_serve_every_case_on_hopper_and_each_rule_serves_some() -> None:
    found = defaults.defaults()
    cases = [*told_apart(found.rules)]
    serving = {(case.arch, found.find(case)) for case in cases}
    assert (HOPPER.arch, None) not in serving
    # Some serve only calls whose rows have the same bits at all lengths.
    serving |= {(case.arch, found.choose(case, invariant=True)) for case in cases if case.arch == HOPPER.arch}
    assert {number for _, number in serving} >= {*range(len(found.rules))}


def test_an_invariant_call_computes_rows_alike_whatever_its_lengths_packed_in_pages_or_not() -> None:
    found = defaults.defaults()
    cases = [case for case in told_apart(found.rules) if case.arch == HOPPER.arch]
    for case in cases:
        rule = found.rules[found.choose(case, invariant=True)]
        wanted = found.rule_for_any_length(case._replace(packed=False, pages=False))
        assert wanted is not None and rule.alike(wanted), case
    assert len(cases) > 1000


def test_the_rule_that_is_found_is_the_first_whose_conditions_are_all_met() -> None:
    found, draw = defaults.defaults(), random.Random(7)
    for case in draw.sample([*told_apart(found.rules)], 2000):
        seq_q, seq_kv = (round(2 ** draw.uniform(0, 15)) for _ in range(2))
        for of in (case, case._replace(seq_q=seq_q, seq_kv=seq_kv, group=draw.choice((1, 2, 3, 8)))):
            met = (number for number, rule in enumerate(found.rules) if rule.unmet(of) is None)
            assert found.find(of) == next(met, None), of


def test_every_rule_has_a_record_and_a_schedule_that_is_meant_for_its_sizes_and_fits() -> None:
    for rule in defaults.defaults().rules:
        said = re.fullmatch(r"([\w.-]+\.jsonl) says .+", rule.record)
        assert rule.record == NONE_YET or (said and (ROOT / "results" / said[1]).is_file()), rule
        named = resolve(rule.schedule)
        for size, arch in itertools.product(rule.head_dims, rule.archs):
            assert is_meant(size, named.head_dims), (rule.schedule, size)
            check_limits(Planned(named.schedule), size, CARDS[arch])


def test_schedules_of_one_block_compute_a_row_as_those_of_a_larger_one() -> None:
    small, large = (resolve(name).schedule for name in ("short_keys", "best"))
    assert (small.block_N, large.block_N) == (64, 176)
    for most, alike in ((64, True), (65, False), (176, False), (177, False)):
        assert (small.arithmetic(most) == large.arithmetic(most)) == alike


def test_every_kind_of_case_has_a_schedule_that_is_meant_for_it() -> None:
    masks = (FULL, CAUSAL, Mask(5, 0), Mask(5, 5), Mask(None, 2), Mask(5, None))
    for size, dtype, mask in itertools.product(TILE_SIZES, DTYPES, masks):
        head_dim, head_dim_v = sizes_of(size)
        named = resolve(default_schedule(problem(100, 900, head_dim, mask, dtype=dtype, head_dim_v=head_dim_v)))
        # Where later keys are hidden tiles come from a counter.
        assert is_meant(size, named.head_dims) and (
            mask.right != 0 or named.schedule.kernel.tile_scheduler == "dynamic"
        )


def test_rows_have_the_same_bits_at_all_lengths_but_for_a_head_size_and_a_softcap() -> None:
    masks = (FULL, CAUSAL, Mask(5, 0), Mask(5, 5))
    for size, dtype, mask, packed in itertools.product(TILE_SIZES, DTYPES, masks, (False, True)):
        head_dim, head_dim_v = sizes_of(size)
        asked = problem(100, 900, head_dim, mask, dtype=dtype, head_dim_v=head_dim_v, packed=packed)
        # Some packed sequences may be split, unless a call asks for the same bits.
        by_length = size == 96 and not (packed and mask.right != 0)
        assert computed_problem(asked, HOPPER.arch, None) == (asked, not by_length and not packed), asked
        assert not computed_problem(asked.asking(softcap=30.0), HOPPER.arch, None)[1]
        # Nobody's rules choose a schedule that is named.
        assert computed_problem(asked, HOPPER.arch, None, by_rules=False)[1]
        # In one KV block rows have the bits that they have in a larger one.
        names = {*default_schedules(asked, invariant=True)} - {"short_keys"}
        assert len({resolve(name).schedule.arithmetic(LONGEST) for name in names}) == 1


def test_an_invariant_call_leaves_out_the_sides_of_a_window_that_hide_no_key_where_rows_are_computed_alike() -> None:
    """Else the right side, whose rules may have other KV blocks than those of a full mask, stays."""
    wide, open_left = Mask(900, 900), Mask(None, 900)
    for size, packed in itertools.product(TILE_SIZES, (False, True)):
        head_dim, head_dim_v = sizes_of(size)
        asked = problem(100, 900, head_dim, wide, head_dim_v=head_dim_v, packed=packed)
        left_over = wide if packed else FULL if size in (64, "192/128", 256) else open_left
        assert computed_problem(asked, HOPPER.arch, True) == (replace(asked, mask=left_over), True)
        causal = replace(asked, mask=Mask(900, 0))
        assert computed_problem(causal, HOPPER.arch, True)[0].mask == (causal.mask if packed else CAUSAL)
        # Of a window that hides keys all stays.
        some = replace(asked, mask=Mask(800, 50))
        assert computed_problem(some, HOPPER.arch, True) == (some, True)
        if not packed:
            assert all(
                computed_problem(replace(asked, mask=wide), HOPPER.arch, *how)[0].mask == FULL
                for how in ((False,), (True, False))
            )


def test_each_problem_is_looked_up_once_by_the_lengths_of_the_call(rules, monkeypatch) -> None:
    found = rules()
    monkeypatch.setattr(defaults, "defaults", lambda: found)
    default_schedule.cache_clear()
    names = [default_schedule(problem(seq, 8192)) for seq in (64, 65, 64, 1, 8192, 65)]
    assert names == ["seed_64x128", "best", "seed_64x128", "seed_64x128", "best", "best"]
    assert default_schedule.cache_info().misses == 4
    default_schedule.cache_clear()


def test_a_choice_made_before_costs_little_more_than_a_look_into_a_dict() -> None:
    shape = problem(5000, 8192)
    known = {shape: default_schedule(shape)}
    choice, look = (
        min(timeit.repeat(call, number=1000, repeat=7))
        for call in (lambda: default_schedule(shape), lambda: known[shape])
    )
    assert choice < 5 * look
