"""What a scale may be."""

from __future__ import annotations

from tl_attention.errors import InputError, shown

# The least normal number of fp32, and one near the largest whose product with log2 e is still finite: kernels multiply by both.
SCALES = 2.0**-126, 2.35e38
EXPECTED = f"2^-126 to {SCALES[1]:g}"


def in_range(scale: float) -> bool:
    """Whether kernels may multiply scores by it."""
    return SCALES[0] <= scale <= SCALES[1]


def scale_of(scale: object) -> float:
    """The factor of the scores. Raises InputError."""
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not SCALES[0] <= scale <= SCALES[1]:
        raise InputError(f"scale is {shown(scale)}, expected a number from {EXPECTED}")
    return float(scale)
