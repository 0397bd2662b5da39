"""Says in schedule/files/backward.yaml what records have of each rule's operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import geometric_mean

from measurements.cudnn_inputs import Tried

from pages import backward
from pages.cells import divided, read, speeds
from pages.defaults import with_words
from tl_attention.lab.measure.cell_records import CellRow
from tl_attention.lab.measure.records import read_all
from tl_attention.problem.mask import kind_of
from tl_attention.schedule.files.backward import CUDNN, FILE, PAIR, BackwardRule, backward_rules, case_of
from tl_attention.schedule.files.conditions import NONE_YET


def said() -> Iterator[str]:
    """Yields what the records say of each rule, in the order of the rules."""
    timed = {
        CUDNN: (backward.RECORD.name, divided(read(backward.RECORD))[0], "forward and backward"),
        PAIR: (backward.PAIR.name, read(backward.PAIR), "the backward alone"),
    }
    for rule in backward_rules().rules:
        if rule.operator in timed:
            yield speed_words(rule, *timed[rule.operator])
        elif getattr(rule, "packed", None):
            yield speed_words(rule, *timed[PAIR], than_ours=True)
        else:
            yield wrong_inputs(rule)


def speed_words(rule: BackwardRule, record: str, rows: Iterable[CellRow], what: str, than_ours: bool = False) -> str:
    """Says how fast a record has it beside SDPA's flash, or that beside ours, of the problems that meet the rule."""
    found = speeds([row for row in rows if rule.unmet(case_of(row.shape)) is None], "flash2")
    if not found:
        return NONE_YET
    mean, peer = (1 / geometric_mean(found), "the pair") if than_ours else (geometric_mean(found), "SDPA's flash")
    of = f"geometric mean of {len(found)} problems" if len(found) > 1 else "in one problem"
    return f"{record} says {mean:.2f} x {peer}, {what}, {of}"


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
