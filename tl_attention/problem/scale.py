"""What a scale may be."""

from __future__ import annotations

from tl_attention.errors import InputError, shown

# The least normal number of fp32, and one near the largest whose product with log2 e is still finite: kernels multiply by both.
SCALES = 2.0**-126, 2.35e38
EXPECTED = f"2^-126 to {SCALES[1]:g}"


def scale_of(scale: object, softcap: float | None = None) -> float:
    """The factor of the scores. Under a softcap kernels multiply by scale / softcap. Raises InputError."""
    low, high = SCALES
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not low <= scale <= high:
        raise InputError(f"scale is {shown(scale)}, expected a number from {EXPECTED}")
    if softcap and not low <= scale / softcap <= high:
        raise InputError(f"scale / softcap is {scale / softcap:g}, expected {EXPECTED}")
    return float(scale)
