"""An InOracle has what one feature of a call computes.

The reference computes a feature by its definition, the interpreter as a kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tl_attention.problem.features import BY_WORD, IN_ORDER, INPUTS

# A Change returns what becomes of scores (queries, keys), where `after` says how far each key lies after its query's
# own place.
Change = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class InOracle:
    """An InOracle holds the functions by which the reference and the interpreter compute one feature.

    A feature's value is a number, or that of one head. A value that counts once is a score itself, and has none of
    these functions.
    """

    scores: Callable[[Any], Change] | None = None  # from the value to the change of scaled scores, by definition
    # From the value and the factor to the change that a kernel makes of what its product gives, before that is scaled,
    # None where there is none, and to the factor that scales the rest.
    products: Callable[[Any, float], tuple[Change | None, float]] | None = None
    # From the value and changed scores, which are scaled, to the derivative of that change where it came to these.
    slope: Callable[[Any, Tensor], Tensor] | None = None


def _softcap(cap: float) -> Change:
    return lambda scores, after: cap * (scores / cap).tanh()


def _softcap_of_products(cap: float, factor: float) -> tuple[Change, float]:
    return lambda products, after: torch.tanh(products * (factor / cap)), cap


def _slope_of_softcap(cap: float, scores: Tensor) -> Tensor:
    # A hidden score is -inf, and its weight 0.
    return (1 - (scores / cap) ** 2).clamp(min=0)


# By word.
IN_ORACLE = {"softcap": InOracle(_softcap, _softcap_of_products, _slope_of_softcap), "sinks": InOracle()}


def values_of_head(asked: Mapping[str, Any], head: int | Tensor, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Returns the features' values for one head, or for some, by word, without those whose value is None or 0.

    A number stays as it is; a tensor (heads,) gives one of the dtype and of the shape of `head`, an int or a tensor of
    heads' numbers. Raises TypeError for a word that is no feature.
    """
    if unknown := asked.keys() - BY_WORD.keys():
        raise TypeError(f"{sorted(unknown)[0]!r} is no feature, expected some of {', '.join(IN_ORACLE)}")
    values = ((feature.word, asked.get(feature.word)) for feature in IN_ORDER if feature in INPUTS)
    return {
        word: value[head].to(dtype) if isinstance(value, Tensor) else value
        for word, value in values
        if isinstance(value, Tensor) or value
    }


def changes(values: Mapping[str, Any]) -> Iterator[Change]:
    """Yields the functions by which these features change scaled scores, in order."""
    for word, value in values.items():
        if change := IN_ORACLE[word].scores:
            yield change(value)


def slope_of(values: Mapping[str, Any], scores: Tensor) -> Tensor:
    """Returns the derivative of what these features do to scaled scores, from the changed scores."""
    slope = torch.ones_like(scores)
    for word, value in values.items():
        if of_feature := IN_ORACLE[word].slope:
            slope = slope * of_feature(value, scores)
    return slope


def changes_of_products(values: Mapping[str, Any], factor: float) -> tuple[list[Change], float]:
    """Returns the functions by which features change unscaled scores, and the factor that scales the result."""
    done = []
    for word, value in values.items():
        if change := IN_ORACLE[word].products:
            made, factor = change(value, factor)
            done += [made] if made else []
    return done, factor


def more_scores(values: Mapping[str, Any]) -> list[Tensor]:
    """Returns the values of features that are themselves scores of each row, such as sinks.

    They come beside those of the keys.
    """
    return [value for word, value in values.items() if BY_WORD[word].counts_once]
