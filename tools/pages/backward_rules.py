"""Says in schedule/files/backward.yaml what records have of each rule's operator."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import geometric_mean

from measurements.cudnn_inputs import Tried

from pages import backward
from pages.cells import divided, read, speeds
from pages.defaults import with_words
from tl_attention.lab.measure.records import read_all
from tl_attention.problem.mask import kind_of
from tl_attention.schedule.files.backward import CUDNN, FILE, BackwardRule, backward_rules
from tl_attention.schedule.files.conditions import NONE_YET


def said() -> Iterator[str]:
    """Yields what the records say of each rule, in the order of the rules."""
    for rule in backward_rules().rules:
        yield speed_words(rule) if rule.operator == CUDNN else wrong_inputs(rule)


def speed_words(rule: BackwardRule) -> str:
    """Says how fast forward and backward are beside SDPA's flash, under the rule's mask."""
    rows, _ = divided(read(backward.RECORD))
    rows = [row for row in rows if kind_of(row.shape.mask) in rule.masks]
    if not rows:
        return NONE_YET
    mean = geometric_mean(speeds(rows, "flash2"))
    return f"{backward.RECORD.name} says {mean:.2f} x SDPA's flash, forward and backward, geometric mean of {len(rows)} problems"


def wrong_inputs(rule: BackwardRule) -> str:
    """Says with how many inputs cuDNN is wrong where the rule keeps calls from it, and with how many others."""
    if rule.seq_kv_mod_128 is None:
        return NONE_YET
    rows = read_all(Tried, backward.INPUTS)
    wrong = [(kind_of(row.shape.mask), keys, level) for row in rows for keys, level, _ in row.wrong]
    kept = [level for mask, keys, level in wrong if mask in rule.masks and keys % 128 == rule.seq_kv_mod_128]
    if not kept:
        return NONE_YET
    others = len(wrong) - len(kept)
    return (
        f"{backward.INPUTS.name} says wrong gradients where LSEs are near {max(kept):g} or below, and in {others} of "
        f"{sum(row.tried for row in rows) - len(kept)} other inputs"
    )


MADE = with_words(FILE, said)
