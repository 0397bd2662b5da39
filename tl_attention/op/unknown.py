"""These errors are for arguments that a function does not have. They name the one that may be meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tl_attention.errors import InputError, printable, shown
from tl_attention.problem.features import FEATURES

# The names that other libraries have for arguments, and the names here.
ELSEWHERE = {
    "is_causal": "causal",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "scaling": "scale",
    "sliding_window": "window_size",
    **{theirs: feature.argument for feature in FEATURES for theirs in feature.elsewhere},
}
# Arguments that there is nothing for, and what is done instead.
WITHOUT = {
    "attn_mask": "masks are causal and window_size",
    "attention_mask": "masks are causal and window_size",
    "dropout_p": "there is no dropout",
    "enable_gqa": "k and v may have fewer heads without it",
}


class UnknownArgument(InputError, TypeError):
    """This error is for an argument that a function does not have. Python's own error for that is a TypeError."""


def without_a_name(function: str, value: object, behind: str) -> UnknownArgument:
    """Returns the error for a positional argument behind the last one that has a place."""
    return UnknownArgument(
        f"{function}: {shown(value)} is given behind {behind} without a name, expected a keyword such as causal=True"
    )


def unknown_argument(function: str, names: Iterable[str], known: Iterable[str]) -> UnknownArgument:
    """Returns the error for the first of these unknown keywords, with the known argument that may be meant."""
    name, known = next(iter(names)), list(known)
    close = [found for found in (ELSEWHERE.get(name),) if found in known] or difflib.get_close_matches(name, known, n=1)
    found = f"{function}: no argument is named {printable(name)[:60]}"
    if name in WITHOUT:
        return UnknownArgument(f"{found}: {WITHOUT[name]}")
    if close:
        return UnknownArgument(f"{found}: did you mean {close[0]}?")
    return UnknownArgument(f"{found}, expected some of {', '.join(known)}")
