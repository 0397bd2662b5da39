"""A feature of a call acts at a few places that every kernel has; no kernel knows a feature.

Behind the products, scores change, or their factor does; before the last products, what a row's total needs is read; at
the rows' totals, scores without a key are added and results stored. `c.features` has the features of each place. A
feature's values of a head come to registers, `s.own`, by the parameter's name.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import tilelang.language as T

from tl_attention.kernels.shared.device_code import ON_SCORES
from tl_attention.kernels.shared.rows import number_of
from tl_attention.kernels.shared.softmax import HIGHEST, LOG2_E, tanh
from tl_attention.problem.features import IN_ORDER
from tl_attention.problem.warpgroup import ROWS


@dataclass(frozen=True)
class InKernel:
    """An InKernel holds the functions by which one feature acts in a kernel, one per place, None where it does not act.

    Scores are what Q K^T gives, and the kernel scales them by a `factor` before the softmax, in natural units: log2 e
    comes after it. `value` is the feature's, of the tile's head where heads differ.
    """

    # (x, after, factor, value): what becomes of a score whose key lies `after` keys behind its query's own place. Make
    # a float of that integer before a condition on it: the proof follows conditions on integers.
    score: Any = None
    factor_behind: Any = None  # (factor, value): the factor from then on
    # (score): what the gradient of a changed score is multiplied by. A hidden key's score is -inf.
    slope: Any = None
    operand: Any = None  # (factor, value): what the device function for all scores of a thread takes besides these
    # (rows, s, c): a macro that changes the rows' maxima and totals, or stores something of them. If it adds a score,
    # it leaves in scores_max_prev what the output must be multiplied by.
    totals: Any = None


@dataclass(frozen=True)
class Totals:
    """Totals describes rows of one head, with their maxima and sums of exponentials, for a feature acting on them."""

    scale: object  # of the scores
    maxima: object  # where a thread has its own in registers
    totals: object  # likewise
    queries: object  # where the sequence lies
    seq_q: object  # how many rows it has
    head: object
    first_row: object
    count: object = None  # of the rows, if there is a fragment
    total: object = None  # the fragment of their sums
    place: object = None  # where packed sequences may be split, 0 if this one is not; else None
    row_of_part: object = None  # where packed sequences may be split, where the rows are among the results of parts


@T.macro
def add_sink(rows, s, c):
    """Adds a sink, one more score of each row, to the rows' maxima and to their sums of exponentials.

    It is in natural units, neither scaled nor capped. A row has seen a key, so its maximum is finite. Rows of a part
    get it when parts are merged.
    """
    if rows.place is None:
        add_sinks(rows, s, c)
    else:
        T.fill(s.scores_max_prev, 1)
        if rows.place == 0:
            add_sinks(rows, s, c)


@T.macro
def add_sinks(rows, s, c):
    of_tile = sink_score(s.own["Sinks"][0], rows.scale) if c.tile_heads == 1 else None
    for i in T.Parallel(rows.count):
        sink = of_tile if c.tile_heads == 1 else sink_score(s.own["Sinks"][i], rows.scale)
        s.scores_max_prev[i] = s.scores_max[i]
        s.scores_max[i] = T.max(s.scores_max[i], sink)
        s.scores_max_prev[i] = T.exp2((s.scores_max_prev[i] - s.scores_max[i]) * rows.scale)
        rows.total[i] = rows.total[i] * s.scores_max_prev[i] + T.exp2((sink - s.scores_max[i]) * rows.scale)


def sink_score(sink, per_score):
    """Returns a sink as a score before scaling, which is sink * log2(e) / per_score, but at most HIGHEST."""
    score = sink * LOG2_E / per_score
    return T.if_then_else(score > T.float32(HIGHEST), T.float32(HIGHEST), score)


@T.macro
def store_lse(rows, s, c):
    """Stores each row's LSE = ln 2 (scale scores_max + log2 total), or -inf where the row has seen no key."""
    if rows.place is None:
        T.call_extern("handle", *lse_of_rows(s.given.LSE, rows, c))
    elif rows.place > 0:
        T.call_extern("handle", *lse_at(s.given.LSE[rows.row_of_part], c.box, rows, c))
    else:
        T.call_extern("handle", *lse_of_rows(s.given.MergedLSE, rows, c))


def lse_of_rows(tensor, rows, c):
    """Returns the device function that stores the LSE of rows where their queries lie, with its arguments."""
    head = rows.head if c.tile_heads == 1 else c.variant.first_head(rows.head, T)
    first = number_of(tensor, rows.queries, head, rows.first_row, c)
    return lse_at(first, tensor.shape[1] if c.packed else rows.seq_q, rows, c)


def lse_at(first, head_stride, rows, c):
    """Returns the device function that stores the LSE of rows from an element on, with its arguments."""
    place = T.address_of(first), rows.seq_q - rows.first_row, T.get_thread_binding()
    if c.tile_heads == 1:
        return ("tl_attention_store_lse", rows.maxima, rows.totals, rows.scale, *place)
    name = f"tl_attention_store_lse_of<{c.tile_heads}, {c.box}>"
    return (name, rows.maxima, rows.totals, rows.scale, *place, head_stride)


# By the kernel's parameter.
IN_KERNEL = {
    "softcap": InKernel(
        score=lambda x, after, factor, cap: tanh(x * (factor / cap)),
        factor_behind=lambda factor, cap: cap,
        slope=lambda score: T.max(T.fma(-score, score, T.float32(1)), 0),
        operand=lambda factor, cap: factor / cap,
    ),
    "Sinks": InKernel(totals=add_sink),
    "LSE": InKernel(totals=store_lse),
}


class FeaturePlaces(NamedTuple):
    """FeaturePlaces list, for each place where features act in a kernel, the parameters of those that act there."""

    factor: tuple[str, ...]  # may change the scores' factor, too or alone
    scores: tuple[str, ...]  # change scores
    first: tuple[str, ...]  # read a number of a tile's head before its first scores
    last: tuple[str, ...]  # read one before its last products
    totals: tuple[str, ...]
    rescales: bool

    def at(self, *places):
        """Says whether a feature of the kernel acts at one of these places."""
        return any(getattr(self, place) for place in places)

    @classmethod
    def of(cls, parameters):
        """Sorts the features of a kernel with these parameters by where they act, and returns the FeaturePlaces."""
        there = [feature for feature in IN_ORDER if feature.name in parameters]

        def those(condition):
            return tuple(feature.name for feature in there if condition(feature))

        return cls(
            those(lambda feature: feature.changes_scores),
            those(lambda feature: feature.changes_scores and feature.acts != "factor"),
            those(lambda feature: feature.changes_scores and feature.per_head),
            those(lambda feature: not feature.changes_scores and feature.per_head),
            those(lambda feature: not feature.changes_scores),
            bool(those(lambda feature: feature.counts_once)),
        )


# --- the places ------------------------------------------------------------------------------------------------------


def value_of(name, given, own, c):
    """Returns the value of the named feature, a number of the call or of the tile's head."""
    return own[name][0] if name in c.features.first else getattr(given, name)


def factor_of(given, own, c, before=None):
    """Returns the factor of scores behind all features that change it, or right before the feature named `before`."""
    factor = given.softmax_scale
    for name in c.features.factor:
        if name == before:
            break
        if IN_KERNEL[name].factor_behind:
            factor = IN_KERNEL[name].factor_behind(factor, value_of(name, given, own, c))
    return factor


def changed_by(name, x, after, s, c):
    """Returns score x as the named feature changes it; the key lies `after` keys behind its query's own place."""
    factor, value = factor_of(s.given, s.own, c, name), value_of(name, s.given, s.own, c)
    return IN_KERNEL[name].score(x, after, factor, value)


def changed(x, after, s, c):
    """Returns score x as all features of the kernel that act on scores change it, one after another."""
    for name in c.features.scores:
        x = changed_by(name, x, after, s, c)
    return x


def slope_of(score, c):
    """Returns what the gradient of a score is multiplied by that all features of the kernel have changed."""
    return prod(IN_KERNEL[name].slope(score) for name in c.features.scores)


def changes_at_once(name):
    """Returns True if the named feature has a device function that changes all scores of a thread at once."""
    return name in ON_SCORES


def operand_of(name, s, c):
    """Returns the number that the named feature's device function takes besides the scores."""
    factor, value = factor_of(s.given, s.own, c, name), value_of(name, s.given, s.own, c)
    return IN_KERNEL[name].operand(factor, value)


@T.macro
def own_values(c):
    """Allocates room for each feature that reads a number of a tile's head; returns it by feature name."""
    return {name: own_value(c) for name in (*c.features.first, *c.features.last)}


@T.macro
def own_value(c):
    """Allocates a fp32 register for the number that a feature reads of a tile's head, or a number of each row."""
    own = T.alloc_local([1], "float32") if c.tile_heads == 1 else T.alloc_fragment([ROWS], "float32")
    # TileLang calls the register by this name.
    return own  # noqa: RET504


@T.macro
def read(names, head, s, c):
    """Loads each named feature's number for a tile's head, or for those of its rows, to the feature's registers."""
    for name in names:
        if c.tile_heads == 1:
            s.own[name][0] = getattr(s.given, name)[head]
        else:
            T.call_extern("handle", *read_heads(getattr(s.given, name), s.own[name], head, c))


def read_heads(tensor, own, head, c):
    """Returns the device function that reads a number for each row of a tile of several heads, with its arguments."""
    return (
        f"tl_attention_read_heads<{c.tile_heads}, {c.box}>",
        own.data,
        T.address_of(tensor[c.variant.first_head(head, T)]),
    )


@T.macro
def at_totals(rows, s, c):
    """Runs what each feature does with the rows' totals, such as adding a sink or storing the LSE."""
    for name in c.features.totals:
        IN_KERNEL[name].totals(rows, s, c)
