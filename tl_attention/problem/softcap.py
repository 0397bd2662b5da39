"""What a softcap may be."""

from __future__ import annotations

from tl_attention.errors import InputError, shown

# The least and the largest, so that fp32 has the scale divided by it.
SOFTCAPS = 1e-20, 1e20


def softcap_of(softcap: object) -> float:
    """The cap of the scores, 0 for none. Raises InputError."""
    low, high = SOFTCAPS
    if (
        not isinstance(softcap, (int, float))
        or isinstance(softcap, bool)
        or not (softcap == 0 or low <= softcap <= high)
    ):
        raise InputError(f"softcap is {shown(softcap)}, expected 0, which is off, or {low:g} to {high:g}")
    return float(softcap)
