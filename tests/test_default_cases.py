"""Whether rules serve every case, and each some, is judged on a few cases: held to every case of small numbers."""

from __future__ import annotations

import functools
import math
import random

import numpy as np

from tl_attention.files.default_rule import EITHER, KEYS, NONE_YET, Rule
from tl_attention.files.defaults import _told_apart
from tl_attention.hardware.card import ARCHS
from tl_attention.problem.features import BY_WORD
from tl_attention.problem.head_dims import TILE_SIZES
from tl_attention.problem.shape import DTYPES
from tl_attention.problem.window import MASK_KINDS


def test_the_cases_that_stand_for_all_reach_every_rule_that_any_case_reaches() -> None:
    rng = random.Random(11)

    def numbers() -> str:
        first, last = sorted(rng.choices(range(1, 4), k=2))
        return rng.choice((f"up to {last}", f"from {first}", f"{first} to {last}"))

    def some(values: tuple) -> list:
        return rng.sample(values, rng.randint(1, len(values)))

    values = (TILE_SIZES, DTYPES, MASK_KINDS, *[range(1, 5)] * 3, *[EITHER] * len(BY_WORD), ARCHS)
    fields = [*zip(KEYS, values, strict=True)]

    def serves(rule: Rule) -> np.ndarray:
        """Every case, whether the rule serves it: where all of its conditions hold."""
        holds = (np.array([rule.holds(field, value) for value in given]) for field, given in fields)
        return functools.reduce(np.logical_and.outer, holds).ravel()

    seen: set[tuple[bool, bool]] = set()
    for _ in range(40):
        conditions = {
            "head_dims": lambda: some(TILE_SIZES),
            "dtypes": lambda: some(DTYPES),
            "masks": lambda: some(MASK_KINDS),
        }
        conditions |= dict.fromkeys(("seq_q", "seq_kv", "group"), numbers)
        conditions |= dict.fromkeys(BY_WORD, lambda: rng.random() < 0.5)
        # Without them a rule is for one card alone.
        rest = {
            "archs": ARCHS if rng.random() < 0.7 else some(ARCHS),
            "schedule": "best",
            "why": "drawn",
            "record": NONE_YET,
        }
        drawn = [
            Rule(**{key: draw() for key, draw in conditions.items() if rng.random() < 0.4}, **rest)
            for _ in range(rng.randint(1, 6))
        ]

        found = {
            next((n for n, rule in enumerate(drawn) if rule.unmet(case) is None), None) for case in _told_apart(drawn)
        }
        # Behind the last rule there is none.
        first = np.argmax([*map(serves, drawn), np.ones(math.prod(map(len, values)), dtype=bool)], axis=0)
        assert found == {n if n < len(drawn) else None for n in first.tolist()}, drawn
        seen.add((None in found, len(found - {None}) == len(drawn)))
    # All cases served or not, by all rules or by some.
    assert len(seen) == 4
