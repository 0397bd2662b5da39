"""The race's test is Wilcoxon's, and calls few kernels faster that are as fast as the incumbent."""

import random
from collections import Counter
from itertools import product

import pytest

from tl_attention.lab.search.race import ERROR, LOOKS, p_value, verdict

# (n, seed, what scipy 1.17.1 has: stats.wilcoxon(drawn(n, seed), alternative="greater", method="exact").pvalue).
OF_SCIPY = [
    (1, 1, 0.5),
    (1, 101, 1.0),
    (2, 2, 0.5),
    (2, 102, 0.25),
    (3, 3, 0.375),
    (3, 103, 0.25),
    (5, 5, 0.78125),
    (5, 105, 0.59375),
    (7, 7, 0.109375),
    (7, 107, 0.0546875),
    (8, 8, 0.00390625),
    (8, 108, 0.01171875),
    (10, 10, 0.9345703125),
    (10, 110, 0.24609375),
    (13, 13, 0.13671875),
    (13, 113, 0.2274169921875),
    (14, 14, 0.213134765625),
    (14, 114, 0.0863037109375),
    (17, 17, 0.5912094116210938),
    (17, 117, 0.03570556640625),
    (19, 19, 0.07234382629394531),
    (19, 119, 0.0843963623046875),
    (22, 22, 0.2030165195465088),
    (22, 122, 0.23138880729675293),
    (25, 25, 0.008656173944473267),
    (25, 125, 0.39573797583580017),
]
WITH_TIES = [
    [0.1, -0.2, 0.3, 0.3, -0.3, 0.5, 0.0],
    [1.0, 1.0, 1.0, -1.0],
    [-0.5, 0.5, 0.25, 0.25, 0.25, -0.125, 2.0, 2.0],
    [0.0, 0.0],
]


def drawn(n: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0.3, 1) for _ in range(n)]


@pytest.mark.parametrize("n, seed, wanted", OF_SCIPY)
def test_it_is_scipys_exact_test(n: int, seed: int, wanted: float) -> None:
    assert p_value(drawn(n, seed)) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("ratios", WITH_TIES, ids=str)
def test_with_ties_it_counts_all_choices_of_signs(ratios: list[float]) -> None:
    sizes = sorted(abs(ratio) for ratio in ratios if ratio)
    ranks = {size: sizes.index(size) + (sizes.count(size) + 1) / 2 for size in sizes}

    def positive(numbers: list[float]) -> float:
        return sum(ranks[abs(number)] for number in numbers if number > 0)

    found = [ratio for ratio in ratios if ratio]
    sums = [positive([sign * abs(x) for sign, x in zip(signs, found)]) for signs in product((1, -1), repeat=len(found))]
    assert p_value(ratios) == sum(total >= positive(found) for total in sums) / len(sums)


def raced(rng: random.Random, gain: float) -> tuple[str, int]:
    """Returns the verdict on a candidate that is faster by `gain`, in units of the noise, and after how many rounds."""
    ratios: list[float] = []
    while (found := verdict(ratios)) == "undecided":
        ratios.append(rng.gauss(gain, 1))
    return found, len(ratios)


def test_equal_kernels_are_rarely_told_apart_and_unequal_ones_soon() -> None:
    rng = random.Random(1)
    equal = Counter(raced(rng, 0.0)[0] for _ in range(2000))
    assert equal["faster"] <= 2000 * ERROR and equal["slower"] <= 2000 * ERROR
    # Each look may err: without correction there would be more.
    assert equal["level"] == 2000 - equal["faster"] - equal["slower"] > 1800
    faster = [raced(rng, 2.0) for _ in range(200)]
    assert {found for found, _ in faster} == {"faster"} and sum(rounds for _, rounds in faster) < 200 * 10


def test_it_looks_only_where_it_said() -> None:
    assert [n for n in range(40) if verdict([1.0] * n) != "undecided"] == [*LOOKS]
