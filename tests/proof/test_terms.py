"""Every rule that makes terms simpler keeps their numbers, and what is shown of terms holds at all drawn points."""

import random
from functools import partial

import numpy as np
import pytest
from tiers import exhaustive, sampled

from tl_attention.codeproof.run.threads import NUMBERS
from tl_attention.codeproof.terms import choices as of_choices
from tl_attention.codeproof.terms import facts as of_facts
from tl_attention.codeproof.terms import term as of_terms
from tl_attention.codeproof.terms.arithmetic import TermOperators
from tl_attention.codeproof.terms.choices import chosen, equal, least, most
from tl_attention.codeproof.terms.facts import NOT_NEGATIVE, ZERO, Facts
from tl_attention.codeproof.terms.points import drawn, number_of
from tl_attention.codeproof.terms.solver import Query
from tl_attention.codeproof.terms.spread import Spread, apply, extremes, split_common, with_updates
from tl_attention.codeproof.terms.spread import numbers as numbers_of_threads
from tl_attention.codeproof.terms.term import CONSTANT, Atom, Refused, Term, is_not_negative, quotient, term

# Bounds of symbols: sizes, a number that may be negative, a lane, and a choice.
RANGES = {
    "heads": (1, 65535),
    "seq_q": (1, 1 << 30),
    "keys": (0, 1 << 30),
    "past": (-(1 << 30), 1 << 30),
    "lane": (0, 31),
}
NUMBERS_OF_CODE = (1, 2, 3, 4, 7, 8, 16, 31, 64, 96, 127, 128, 176, 512)
# What code does with two values, and the same for numbers.
OPERATORS = {
    "+": (lambda a, b: a + b, lambda a, b: a + b),
    "-": (lambda a, b: a - b, lambda a, b: a - b),
    "<": (lambda a, b: a < b, lambda a, b: int(a < b)),
    ">=": (lambda a, b: a >= b, lambda a, b: int(a >= b)),
    "==": (equal, lambda a, b: int(a == b)),
    "min": (least, min),
    "max": (most, max),
}
OF_A_NUMBER = {
    "*": (lambda a, n: a * n, lambda a, n: a * n),
    "//": (lambda a, n: a // n, lambda a, n: a // n),
    "%": (lambda a, n: a % n, lambda a, n: a % n),
    "&": (lambda a, n: a & n, lambda a, n: a & n),
    "^": (lambda a, n: a ^ n, lambda a, n: a ^ n),
    "|": (lambda a, n: a | n, lambda a, n: a | n),
    ">>": (lambda a, n: a >> n % 8, lambda a, n: a >> n % 8),
}
CHUNKS = range(100)


def facts() -> Facts:
    found = Facts()
    for name, bounds in RANGES.items():
        found.symbol(name, *bounds)
    return found


def numbers(rng: random.Random) -> dict[str, int]:
    return {name: drawn(rng, bounds) for name, bounds in RANGES.items()}


class Made:
    """A random term, with the same computed on numbers."""

    def __init__(self, rng: random.Random, depth: int):
        self.function, self.term = None, None
        if depth == 0 or rng.random() < 0.15:
            name = rng.choice([*RANGES])
            self.term, self.at = of_terms.symbol(name), lambda at: at[name]
            return
        a = Made(rng, depth - 1)
        if rng.random() < 0.5:
            of, n = rng.choice([*OF_A_NUMBER.values()]), rng.choice(NUMBERS_OF_CODE)
            self.term, self.at = term(of[0](a.term, n)), lambda at: of[1](a.at(at), n)
            return
        b = Made(rng, depth - 1)
        kind = rng.random()
        if kind < 0.15:
            # A quotient by a term, which is above 0.
            self.term, self.at = quotient(a.term, most(b.term, 1)), lambda at: a.at(at) // max(b.at(at), 1)
        elif kind < 0.3:
            self.term = chosen(is_not_negative(a.term - 3), b.term, a.term)
            self.at = lambda at: b.at(at) if a.at(at) >= 3 else a.at(at)
        else:
            of = rng.choice([*OPERATORS.values()])
            self.term, self.at = term(of[0](a.term, b.term)), lambda at: of[1](a.at(at), b.at(at))


def check_forms(seed: int) -> None:
    """A term's number is that of what it was made of; a simpler form, a name and a form without names have the same."""
    rng, here = random.Random(f"terms {seed}"), facts()
    made = Made(rng, rng.randint(1, 4))
    known = [of_terms.symbol("seq_q") - of_terms.symbol("keys"), 100 - of_terms.symbol("lane")]
    with here.assuming(*rng.sample(known, rng.randint(0, 2))):
        forms = [made.term, here.simpler(made.term), here.unnamed(here.named(made.term)), here.merged(made.term)]
        low, high = here.range(made.term)
        for _ in range(12):
            at = numbers(rng)
            if all(number_of(fact, at, {}) >= 0 for fact in here.here):
                wanted = made.at(at)
                found = [number_of(here.unnamed(form), at, {}) for form in forms]
                assert found == [wanted] * len(forms), (seed, at, [str(form) for form in forms])
                assert low <= wanted <= high, (seed, at, str(made.term), low, high)


@pytest.mark.parametrize("chunk", sampled(CHUNKS, [0, 1]))
def test_every_rule_keeps_the_numbers_of_terms(chunk: int) -> None:
    for seed in range(100 * chunk, 100 * chunk + 100):
        check_forms(seed)


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("quotient", lambda of, by: of if by.same(1) else Atom.one("quotient", of=of + 1, by=by).term),
        ("negative_part", lambda of: Atom.one("least", of=of - 1).term),
        ("is_not_negative", lambda of: Atom.one("holds", of=of - 1).term),
    ],
)
def test_a_false_rule_shows(name: str, wrong: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (of_terms, of_facts, of_choices):
        monkeypatch.setattr(module, name, wrong, raising=False)
    with pytest.raises(AssertionError):
        for seed in range(200):
            check_forms(seed)


@pytest.mark.parametrize("chunk", sampled(CHUNKS, [0]))
def test_what_is_shown_holds_at_drawn_numbers(chunk: int) -> None:
    for seed in range(20 * chunk, 20 * chunk + 20):
        rng, here = random.Random(f"shown {seed}"), facts()
        a, b = Made(rng, 2), Made(rng, 2)
        shown = [of for of in (a.term, b.term, a.term - b.term, most(a.term, b.term) - a.term) if here.sign(of) > 0]
        same = here.is_zero(a.term - b.term)
        for _ in range(200):
            at = numbers(rng)
            assert all(number_of(of, at, {}) >= 0 for of in shown), (seed, at)
            assert not same or a.at(at) == b.at(at), (seed, at)


@pytest.mark.parametrize("by", [1, 2, 3, 4, 6, 64, 96, 128])
def test_a_quotient_that_is_rounded_up_has_one_form(by: int) -> None:
    x, y = (of_terms.symbol(name) for name in "xy")
    for of in (x, 3 * x, x + 5, x + y, x - y, y - x, 64 * x, x // 64, x // 64 + 1, x * (y // 3)):
        assert (-(-of // by)).same((of + by - 1) // by), f"{of} by {by}"


@exhaustive
@pytest.mark.parametrize("chunk", CHUNKS)
def test_c_divides_towards_0(chunk: int) -> None:
    rng = random.Random(f"division {chunk}")
    here = facts()
    arithmetic = TermOperators(here).functions
    for _ in range(50):
        made, by = Made(rng, 2), rng.choice(NUMBERS_OF_CODE)
        for name in ("quotient", "remainder"):
            found = term(arithmetic[name](made.term, by))
            for at in (numbers(rng) for _ in range(20)):
                wanted = NUMBERS[name](made.at(at), by)
                assert number_of(here.unnamed(found), at, {}) == wanted, (str(made.term), by, at)


def test_refusals_have_both_terms_and_numbers() -> None:
    here = facts()
    keys = of_terms.symbol("keys")
    with pytest.raises(Refused, match=r"^a row is keys \+ 1, expected keys$"):
        here.show_equal("a row", keys + 1, keys)
    with pytest.raises(Refused, match=r"^a row is keys, expected 7, where keys = \d+$"):
        here.show_equal("a row", keys, 7)
    with pytest.raises(Refused, match=r"^a row: keys - 7, expected no number below 0, where keys = [0-6]$"):
        here.show("a row", keys - 7)
    here.show_equal("a row", (keys + 127) // 128 * 128 % 128, 0)
    assert here.solver.shows(keys, NOT_NEGATIVE) and not here.solver.shows(keys, ZERO)


def test_a_fact_holds_where_it_is_assumed_alone() -> None:
    here = facts()
    seq_q, keys = of_terms.symbol("seq_q"), of_terms.symbol("keys")
    with here.assuming(seq_q - keys):
        assert here.simpler(least(seq_q, keys)).same(keys) and here.named(least(seq_q, keys + 7)) is not None
    assert not here.simpler(least(seq_q, keys)).same(keys)
    with pytest.raises(Refused, match="a truth value of"):
        bool(seq_q)
    with pytest.raises(Refused, match="a quotient by 0"):
        _ = seq_q // 0


# What is done with a value of threads, and the same with the value of one.
OF_THREADS = (
    *(of for of, _ in (*OPERATORS.values(),)[:4]), *(partial(apply, of) for of in (equal, least, most)),
    lambda a, b: b - a, lambda a, b: b <= a, lambda a, b: a * b,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_threads_have_each_the_term_of_its_own_numbers(seed: int) -> None:
    rng = random.Random(f"threads {seed}")
    lanes = np.array([rng.choice([0, 1, 5, 31]) for _ in range(8)])
    values = [Spread({CONSTANT: lanes}), Spread({CONSTANT: lanes // 2})]
    alone = [[term(int(lane)), term(int(lane) // 2)] for lane in lanes]
    for _ in range(rng.randint(1, 4)):
        of, n = rng.choice(OF_THREADS), rng.choice(NUMBERS_OF_CODE)
        other = rng.choice([of_terms.symbol("seq_q") // 3, of_terms.symbol("keys"), n, values[1]])
        by_number = rng.choice([of for of, _ in OF_A_NUMBER.values()])
        values[0] = by_number(of(values[0], other), n)
        for own in alone:
            # An operator of Spreads is one of Terms, too.
            given = own[1] if other is values[1] else term(other)
            own[0] = term(by_number(of.args[0](own[0], given) if isinstance(of, partial) else of(own[0], given), n))
    assert [values[0][thread] for thread in range(8)] == [own[0] for own in alone]
    own, places = alone[3][0], np.array([3, 5])
    joined = with_updates(values[0], 8, [(places, values[0][places] + 1)])
    assert joined[3] == own + 1 and joined[2] == alone[2][0]
    assert [*np.unique(numbers_of_threads(values[1]))] == [*np.unique(lanes // 2)]
    assert split_common(values[1] + of_terms.symbol("keys"))[0] == of_terms.symbol("keys")


def test_threads_that_differ_in_more_than_numbers_have_nothing_in_common() -> None:
    with pytest.raises(Refused, match="differ by more than numbers"):
        split_common(Spread({CONSTANT: np.arange(3)}) * of_terms.symbol("keys"))


def fits(here: Facts, of: Term) -> bool:
    try:
        here.show_fits(of)
    except Refused:
        return False
    return True


def check_fits(seed: int) -> bool:
    """Says whether a result is said to fit 32 bits; checks that it and those beside it do, wherever the bounds hold."""
    rng, here = random.Random(f"fits {seed}"), facts()
    heads, seq_q, keys = (of_terms.symbol(name) for name in ("heads", "seq_q", "keys"))
    for bound in (2**31 - 1 - heads * seq_q, 2**31 - 2**16 - seq_q - keys, 2**31 - 1 - 3 * heads * keys):
        here.bounds[bound] = None
    # As by how many rows a key in pages is behind where it were without: its row is from 0 to 2**30.
    shift = here.symbol("shift", -(2**31), 2**31)
    here.between["shift"] = -keys, 2**30 - keys
    made, tiles = Made(rng, 1).term, term(keys) // rng.choice((64, 128))
    of = rng.choice((heads * (seq_q // 2), seq_q * rng.choice((1, 3)), (seq_q + 127) // 128 * least(heads, made)))
    of += rng.choice((0, keys, tiles * rng.choice((1, 64, 128, 200)), -keys, heads * keys, 2 * heads * tiles))
    of = rng.choice((of, of, shift + keys, keys - shift, 2 * shift + tiles, 2 * (shift + keys) - seq_q))
    of += rng.choice((0, 0, 2**30 - 200))
    shown = [one for one in (of, of + 100, of + 700, of - 50) if fits(here, one)]
    for _ in range(300 if shown else 0):
        at = {**numbers(rng), "heads": rng.choice((1, 2, 7, 65535)), "keys": int(2 ** rng.uniform(0, 30))}
        at["seq_q"] = rng.choice((1, int(2 ** rng.uniform(0, 30)), (2**31 - 1) // at["heads"]))
        at["shift"] = drawn(rng, (-at["keys"], 2**30 - at["keys"]))
        if at["seq_q"] < RANGES["seq_q"][1] and all(number_of(bound, at, {}) >= 0 for bound in here.bounds):
            for one in shown:
                assert -(2**31) <= number_of(here.unnamed(one), at, {}) < 2**31, (seed, at, str(one))
    return of in shown


def test_rows_of_a_tile_are_shown_to_fit_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, here, keys = [], facts(), of_terms.symbol("keys")
    shows = here.solver.shows
    monkeypatch.setattr(here.solver, "shows", lambda *given: asked.append(given) or shows(*given))
    # Neither intervals nor one bound show that three times as many fit.
    here.bound(2**29 - keys)
    for row in range(200):
        key, shift = 3 * keys + row, here.symbol(f"shift {row}", -(2**31), 2**31)
        here.between[f"shift {row}"] = -key, 2**29 - key
        here.show_fits(key)
        here.show_fits(shift)
    assert 0 < len(asked) < 5
    with pytest.raises(Refused, match="does not fit 32 bits, where keys = "):
        here.show_fits(3 * keys + 2**29)
    with pytest.raises(Refused, match="does not fit 32 bits, where keys = "):
        here.show_fits(shift - keys)


def test_what_is_said_to_fit_32_bits_does() -> None:
    assert 20 < sum(map(check_fits, range(120))) < 100


@pytest.mark.parametrize("wrong", ["the other way round", "at most 5"])
def test_a_false_relation_of_products_shows(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def relate(self: Query) -> None:
        names = [name for monomial, name in self.names.items() if len(monomial) > 1]
        told = ["(assert (<= {} {}))".format(*names[:2])] if wrong == "the other way round" else []
        self.lines += [*told[: len(names) - 1], *(f"(assert (<= {name} 5))" for name in names if not told)]

    monkeypatch.setattr(Query, "relate_products", relate)
    with pytest.raises(AssertionError):
        for seed in range(120):
            check_fits(seed)


@pytest.mark.parametrize("seed", range(50))
def test_the_ends_of_a_spread_are_above_and_below_every_thread(seed):
    rng, here = random.Random(f"ends {seed}"), facts()
    heads, lane = of_terms.symbol("heads"), of_terms.symbol("lane")
    steps = np.array([rng.choice((0, 3, 5)) for _ in range(64)])
    value = Spread({CONSTANT: steps}) * heads + np.array([rng.randrange(-9, 9) for _ in range(64)]) + lane
    found = [*extremes(value)]
    for number in range(len(value)):
        apart = [(one - value[number]).constant for one in found if (one - value[number]).constant is not None]
        assert min(apart) <= 0 <= max(apart)
    assert len(found) <= 6
    # One thread in the middle that leaves 32 bits is enough.
    far = np.where(np.arange(64) == rng.randrange(1, 63), 1 << 31, 0)
    with pytest.raises(Refused, match="does not fit 32 bits"):
        for one in extremes(Spread({CONSTANT: far}) + lane):
            here.show_fits(one)
