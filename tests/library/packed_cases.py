"""The tests of packed sequences have these cases: FlashAttention-3's matrix of them, and ragged batches drawn here."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from tl_attention.problem.head_dims import HeadSize, sizes_of
from tl_attention.problem.mask import Mask, masked

SEED = 20261126
# FlashAttention-3's own pairs of longest lengths, head counts and head sizes for packed sequences.
FA3_PAIRS = (
    *(
        (1, 1),
        (1, 3),
        (2, 1),
        (511, 1),
        (3, 513),
        (64, 128),
        (128, 128),
        (256, 256),
        (113, 203),
        (128, 217),
        (113, 211),
    ),
    *((108, 256), (256, 512), (307, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024), (1024, 1023)),
    *((1024, 1024), (2048, 2048), (4096, 4096)),
)
HEADS = ((6, 6), (6, 2), (6, 1))
SIZES: tuple[HeadSize, ...] = (64, 96, 128, 192, "192/128", 256)
# (softcap, what Q is multiplied with).
CAPS = ((0.0, 1.0), (15.0, 3.75))
DTYPES = ("bfloat16", "float16")
# Which sides of a window are closed: a kernel is compiled for that, and reads how long they are.
OPEN, LEFT, RIGHT, BOTH = (False, False), (True, False), (False, True), (True, True)
# Above the lengths that have another schedule: a kernel of a case is compiled once.
LONG = 65
# How many rows a matrix's sequences may lack of the longest.
MISSING = 20


@dataclass(frozen=True)
class Kernel:
    """A kernel is what one is compiled for beside its schedule."""

    dtype: str
    size: HeadSize
    heads: tuple[int, int]
    capped: bool
    causal: bool
    closed: tuple[bool, bool]
    sinks: bool = False

    def window(self, longest: int, rng: random.Random) -> tuple[int, int]:
        """Draws a window_size for sequences of so many keys, as FlashAttention-3's test does: shorter than these."""
        left, right = (rng.randrange(max(1, longest)) if closed else -1 for closed in self.closed)
        return left, right

    def __str__(self) -> str:
        heads, heads_kv = self.heads
        words = [self.dtype, str(self.size), f"{heads}on{heads_kv}", "capped" * self.capped, "causal" * self.causal]
        words += [side * closed for side, closed in zip(("left", "right"), self.closed)]
        words += ["sinks" * self.sinks]
        return "-".join(word.replace("/", "_") for word in words if word)


@dataclass(frozen=True)
class PackedCase:
    """A case is one call: lengths of each sequence, of which so many rows are used, and everything but the numbers."""

    kernel: Kernel
    window: tuple[int, int]
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    used_q: tuple[int, ...] | None
    used_k: tuple[int, ...] | None
    cap: tuple[float, float]
    lse: bool
    memory: str = "contiguous"
    out: bool = False
    zero_unused: bool = False
    # Rows of no sequence behind the last, and a sequence that holds NaN alone.
    behind: int = 0
    spoilt: int | None = None
    # The least that the call says of the longest lengths: short ones have a schedule of their own.
    at_least: int = LONG

    @property
    def mask(self) -> Mask:
        return masked(self.kernel.causal, self.window)

    @property
    def head_dims(self) -> tuple[int, int]:
        return sizes_of(self.kernel.size)

    @property
    def each(self) -> list[tuple[int, int]]:
        """Returns (queries, keys) of each sequence that count."""
        return [*zip(self.used_q or self.lengths_q, self.used_k or self.lengths_k, strict=True)]

    @property
    def longest(self) -> tuple[int, int]:
        return max(self.at_least, *self.lengths_q), max(self.at_least, *self.lengths_k)


def matrix() -> dict[Kernel, list[PackedCase]]:
    """Returns FlashAttention-3's matrix: each pair of lengths for each kernel, by kernel."""
    rng = random.Random(SEED)
    found: dict[Kernel, list[PackedCase]] = {}
    of_masks = [*product((False, True), (False, True))]
    for number, (dtype, size, heads, cap) in enumerate(product(DTYPES, SIZES, HEADS, CAPS)):
        for causal, has_window in of_masks:
            # FlashAttention-3's windows are closed on both sides, of which a causal mask closes the right one anyway.
            closed = (BOTH if causal else (BOTH, BOTH, LEFT, RIGHT)[number % 4]) if has_window else OPEN
            kernel = Kernel(dtype, size, heads, cap[0] > 0, causal, closed)
            found.setdefault(kernel, []).extend(_of_pair(kernel, pair, cap, rng) for pair in FA3_PAIRS)
    return found


def _of_pair(kernel: Kernel, pair: tuple[int, int], cap: tuple[float, float], rng: random.Random) -> PackedCase:
    """Draws used lengths as FlashAttention-3's test does, with unused rows in each sequence; some have no keys."""
    most_q, most_k = pair
    batch = 9 if most_k <= 2048 else 2
    used_q = tuple(rng.randint(max(1, most_q - MISSING), most_q) for _ in range(batch))
    drawn = [rng.randint(max(0, most_k - MISSING), most_k) for _ in range(batch)]
    used_k = tuple(0 if n % 5 == 0 or n == batch - 1 else length for n, length in enumerate(drawn))
    lengths_q, lengths_k = (tuple(n + rng.randint(0, 1 + n // 3) for n in used) for used in (used_q, used_k))
    # One of six kernels is tried with the schedule for few queries, too.
    least = 0 if (kernel.dtype, kernel.heads) == ("bfloat16", (6, 2)) else LONG
    out = rng.random() < 0.3
    window = kernel.window(most_k, rng)
    return PackedCase(kernel, window, lengths_q, lengths_k, used_q, used_k, cap, lse=True, out=out, at_least=least)


# Kernels of the ragged batches: each mask, head size, dtype and feature is in several.
RAGGED = tuple(
    Kernel(*of)
    for of in (
        ("bfloat16", 128, (6, 6), False, False, OPEN),
        ("bfloat16", 128, (6, 6), False, True, OPEN),
        ("float16", 128, (8, 2), False, True, OPEN),
        ("float16", 64, (6, 6), False, False, OPEN),
        ("bfloat16", 64, (6, 2), False, True, OPEN),
        ("float16", 64, (4, 4), False, False, BOTH),
        ("bfloat16", 128, (4, 1), False, True, LEFT),
        ("bfloat16", 96, (3, 3), False, True, OPEN),
        ("float16", "192/128", (4, 4), False, True, OPEN),
        ("bfloat16", "192/128", (4, 4), False, False, OPEN),
        ("bfloat16", 256, (2, 2), False, False, OPEN),
        ("float16", 256, (4, 2), False, True, OPEN),
        ("bfloat16", 128, (8, 8), True, True, OPEN, True),
        ("float16", 64, (8, 4), True, False, RIGHT, True),
        ("bfloat16", 80, (3, 1), False, False, OPEN, True),
        ("float16", 192, (2, 2), False, False, LEFT),
        ("bfloat16", 40, (4, 4), True, True, OPEN),
        ("float16", 72, (5, 5), False, True, BOTH),
        ("bfloat16", 128, (34, 2), False, False, OPEN, True),
        ("float16", 104, (2, 1), True, False, OPEN),
    )
)
BATCHES = 100


def ragged(kernel: Kernel, count: int = BATCHES) -> Iterator[PackedCase]:
    """Draws ragged batches: zeros, one-token sequences, unused rows, a spoilt neighbour, more sequences than rows."""
    rng = random.Random(f"{SEED} {kernel}")
    for number in range(count):
        most = rng.choice((4, 40, 150, 400, 1100))
        batch = rng.choice((1, 2, 3, 7, 20, 60)) if most < 1100 else rng.choice((1, 2, 5))
        lengths_q, lengths_k = ([_length(most, rng) for _ in range(batch)] for _ in "qk")
        if rng.random() < 0.3:
            lengths_k = [*lengths_q]
        if number % 10 == 9:
            lengths_q, lengths_k = ([int(rng.random() < 0.2) for _ in range(300)] for _ in "qk")
        used = [tuple(rng.randint(0, n) for n in of) if rng.random() < 0.4 else None for of in (lengths_q, lengths_k)]
        yield PackedCase(
            kernel, kernel.window(most, rng), tuple(lengths_q), tuple(lengths_k), *used,
            cap=rng.choice(((15.0, 3.75), (50.0, 1.0))) if kernel.capped else (0.0, 1.0),
            lse=kernel.dtype == "bfloat16",
            memory=rng.choice(("contiguous", "heads first", "sliced", "together")),
            out=rng.random() < 0.5,
            zero_unused=rng.random() < 0.2,
            behind=rng.choice((0, 1, 37)),
            spoilt=rng.randrange(len(lengths_q)) if rng.random() < 0.5 else None,
        )  # fmt: skip


def _length(most: int, rng: random.Random) -> int:
    kind = rng.random()
    return 0 if kind < 0.15 else 1 if kind < 0.3 else rng.randint(1, most)


def mixed(kernel: Kernel, count: int, most: int = 5000) -> Iterator[PackedCase]:
    """Draws what `few` does with one or two prompts among the sequences, some of which have keys before them."""
    return few(kernel, count, most, prompts=True)


def few(kernel: Kernel, count: int, most: int = 5000, prompts: bool = False) -> Iterator[PackedCase]:
    """Draws batches of few queries on up to so many keys, with sequences of no query and of no key among them."""
    rng = random.Random(f"{'mixed' if prompts else 'few'} {SEED} {kernel}")
    for _ in range(count):
        batch = rng.choice((1, 1, 2, 5, 20))
        lengths_q = tuple(rng.choice((0, 1, 1, 1, 2, 5, 16)) for _ in range(batch))
        if prompts:
            lengths_q = (*lengths_q, *(rng.randint(17, max(18, most // 4)) for _ in range(rng.choice((1, 1, 2)))))
            batch = len(lengths_q)
        lengths_k = tuple(rng.choice((0, 1, 127, 128, 300, rng.randint(1, most), most)) for _ in range(batch))
        used = [tuple(rng.randint(0, n) for n in of) if rng.random() < 0.3 else None for of in (lengths_q, lengths_k)]
        yield PackedCase(
            kernel, kernel.window(most, rng), (1, *lengths_q), (most, *lengths_k),
            *(None if of is None else (length, *of) for of, length in zip(used, (1, most))),
            cap=(15.0, 3.75) if kernel.capped else (0.0, 1.0),
            lse=rng.random() < 0.5,
            memory=rng.choice(("contiguous", "heads first", "sliced", "together")),
            out=rng.random() < 0.5,
            zero_unused=rng.random() < 0.2,
            behind=rng.choice((0, 1, 37)),
            spoilt=rng.randrange(batch) if rng.random() < 0.5 else None,
            at_least=0,
        )  # fmt: skip
