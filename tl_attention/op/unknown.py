"""Arguments that `attention` does not have: one line says which one is meant, also by another library's name for it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tl_attention.errors import InputError, printable
from tl_attention.problem.features import FEATURES

# What other libraries call it, and what is the same here.
ELSEWHERE = {
    "is_causal": "causal",
    "softmax_scale": "scale",
    "sm_scale": "scale",
    "scaling": "scale",
    "sliding_window": "window_size",
    **{theirs: feature.argument for feature in FEATURES for theirs in feature.elsewhere},
}
# What there is nothing for, and what is done instead.
WITHOUT = {
    "attn_mask": "masks are causal and window_size",
    "attention_mask": "masks are causal and window_size",
    "dropout_p": "there is no dropout",
    "enable_gqa": "k and v may have fewer heads without it",
}


class UnknownArgument(InputError, TypeError):
    """A keyword that `attention` does not have; Python's own error for one is a TypeError."""


def unknown_argument(names: Iterable[str], known: Iterable[str]) -> UnknownArgument:
    """The error for the first of these keywords, with the argument of `known` that it may stand for."""
    name, known = next(iter(names)), list(known)
    meant = ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, known, n=1)), None)
    found = f"attention: no argument is named {printable(name)[:60]}"
    if name in WITHOUT:
        return UnknownArgument(f"{found}: {WITHOUT[name]}")
    return UnknownArgument(
        f"{found}: did you mean {meant}?" if meant else f"{found}, expected some of {', '.join(known)}"
    )
