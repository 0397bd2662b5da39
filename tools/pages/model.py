"""Makes the tables of docs/model.md: what the model predicted, and what was measured.

A pair of schedules counts if the intervals of their ratios do not overlap. The schedules that the model was fitted to
do not count. A model of rank r has (1 + r) / 2 of the pairs the right way round.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from statistics import mean, median
from typing import NamedTuple

import yaml

from pages.made import RESULTS, Make, filling
from pages.where_time_goes import Roles, recorded
from tl_attention.codeproof.mark_places import NAMED_BARRIER
from tl_attention.lab.measure.cell import OURS, SCHEDULE
from tl_attention.lab.measure.cell_records import AGAIN, CellRow, Timed
from tl_attention.lab.measure.records import read_all
from tl_attention.lab.show.table import markdown
from tl_attention.lab.trace.timeline import What

# Of the 15 ratios of a pair of entries, from the 4th to the 12th: the median is there with 96.5 % probability.
TAIL = 3
NEAR, NEIGHBOURS = 1.05, "experiments/"
WORST = 5
# Misses whose timelines results/timelines/ has, of problem L in bf16: as experiment- measured, as predicted- predicted.
MISSES = ("block_M_192", "v_stages_3", "wait_exactly_after_64")


class Case(NamedTuple):
    """A Case is a schedule in a cell, with its time and its ratio to the cell's default, measured and predicted."""

    cell: str
    schedule: str
    ms: float
    ratio: float
    # The interval of the measured ratio.
    least: float
    most: float
    predicted_ms: float
    predicted_ratio: float
    per_key: float  # the loop's instructions for each key
    default_per_key: float  # the same of the default


class Rank(NamedTuple):
    """A Rank is (concordant - discordant) / all of so many pairs, 0 where there are none."""

    rank: float
    pairs: int


@cache
def fitted() -> frozenset[str]:
    """Returns the names of the schedules that the model was fitted to."""
    return frozenset(yaml.safe_load((RESULTS / "model-calibration.yaml").read_text())["schedules"])


@cache
def cases(gpu: str = "h200") -> tuple[Case, ...]:
    """Returns all cases of a GPU's records that have a prediction."""
    lines = json.loads((RESULTS / f"predictions/{gpu}.json").read_text())
    found = {(line["cell"], line["schedule"]): line for line in lines if "ms" in line}
    return tuple(case for row in read_all(CellRow, RESULTS / f"model-{gpu}.jsonl") for case in _of_cell(row, found))


def schedules_of(row: CellRow) -> Iterator[tuple[str, Timed]]:
    """Yields the name and the times of each schedule that was timed beside a cell's default, once each."""
    for entry in row.entries:
        if entry.status == "ok" and entry.name.startswith(SCHEDULE) and not entry.name.endswith(AGAIN):
            yield entry.name.removeprefix(SCHEDULE), entry


def _of_cell(row: CellRow, found: Mapping[tuple[str, str], dict[str, float]]) -> Iterator[Case]:
    base = next(entry for entry in row.entries if entry.name == OURS)
    default = found[row.cell, base.what]
    for name, entry in schedules_of(row):
        if (line := found.get((row.cell, name))) is None:
            continue
        ratios = sorted(own / other for own, other in zip(entry.rounds_ms, base.rounds_ms, strict=True))
        yield Case(
            row.cell,
            name,
            median(entry.rounds_ms),
            median(ratios),
            ratios[TAIL],
            ratios[-1 - TAIL],
            line["ms"],
            line["ms"] / default["ms"],
            line["instructions"] / line["keys"],
            default["instructions"] / default["keys"],
        )


def judged(gpu: str = "h200") -> list[Case]:
    """Returns the cases of schedules that the model was not fitted to."""
    return [case for case in cases(gpu) if case.schedule not in fitted()]


def rank(found: Sequence[Case], of: Callable[[Case], float], near: bool = False) -> Rank:
    """Returns how well `of` ranks pairs of one cell; `near` takes those within 5 % of the cell's fastest schedule."""
    fastest: dict[str, float] = {}
    for case in found:
        fastest[case.cell] = min(case.ratio, fastest.get(case.cell, case.ratio))
    concordant = pairs = 0
    for a, b in combinations(found, 2):
        if a.cell != b.cell or (a.least <= b.most and b.least <= a.most):
            continue
        if near and max(a.ratio, b.ratio) > NEAR * fastest[a.cell]:
            continue
        pairs += 1
        concordant += (a.ratio - b.ratio) * (of(a) - of(b)) > 0
    return Rank((2 * concordant - pairs) / max(pairs, 1), pairs)


def is_neighbour(case: Case) -> bool:
    """Says whether a case's schedule is a neighbour of the default: one of the experiments."""
    return case.schedule.startswith(NEIGHBOURS)


def error_of_ratio(case: Case) -> float:
    return abs(case.predicted_ratio / case.ratio - 1)


def error_of_time(case: Case) -> float:
    return abs(case.predicted_ms / case.ms - 1)


def constant_error(found: Sequence[Case]) -> float:
    """Returns the median error of the ratios of neighbours, if the same ratio, their median, is predicted for all."""
    ratios = [case.ratio for case in found if is_neighbour(case)]
    constant = median(ratios)
    return median(abs(constant / ratio - 1) for ratio in ratios)


def counted_error(found: Sequence[Case]) -> float:
    """Returns the median error of neighbours' ratios, if a key's instructions are compared with the default's."""
    return median(abs(case.per_key / case.default_per_key / case.ratio - 1) for case in found if is_neighbour(case))


def score() -> str:
    """Makes the table of what the model scores, beside an instruction count and a constant."""
    found = judged()
    near, elsewhere = ([case for case in found if is_neighbour(case) is neighbour] for neighbour in (True, False))
    by = {"the model": _time, "instructions for a key": lambda case: case.per_key}
    errors = {"the model": median(map(error_of_ratio, near)), "instructions for a key": counted_error(found)}
    lines = [
        (
            name,
            f"{rank(found, of).rank:.2f}",
            f"{rank(found, of, near=True).rank:.2f}",
            f"{errors[name]:.1%}",
            f"{median(map(error_of_time, elsewhere)):.1%}" if name == "the model" else "",
        )
        for name, of in by.items()
    ]
    lines.append(("a constant", "-1.00", "-1.00", f"{constant_error(found):.1%}", ""))
    pairs = rank(found, by["the model"]).pairs, rank(found, by["the model"], near=True).pairs
    headings = (
        "",
        f"rank, {pairs[0]:,} pairs",
        f"rank within 5 %, {pairs[1]:,} pairs",
        f"error of a ratio, {len(near)} neighbours",
        f"error of a time, {len(elsewhere)} others",
    )
    return markdown(headings, lines)


def meaning() -> str:
    """Says in words what the ranks mean, and what they are on the H100 and on the same pairs of the H200."""
    here, there = judged(), judged("h100")
    both = {(case.cell, case.schedule) for case in there}
    same = [case for case in here if (case.cell, case.schedule) in both]
    ranks = (rank(here, _time), rank(here, _time, near=True), rank(there, _time), rank(same, _time))
    all_pairs, near, h100, h200 = (one.rank for one in ranks)
    text = (
        f"A rank of {all_pairs:.2f} puts {100 * (1 + all_pairs) / 2:.0f} of 100 pairs in the right order, and one of "
        f"{near:.2f} puts {100 * (1 + near) / 2:.0f}. So use the model to drop what is slow and to choose what to time first, and a "
        f"GPU to decide among what is fast. On an H100, with `h100.yaml`, the rank of {ranks[2].pairs:,} pairs is {h100:.2f}; "
        f"the same schedules have {h200:.2f} on the H200 (`results/model-h100.jsonl`)."
    )
    return "\n".join(textwrap.wrap(text, 120, break_on_hyphens=False))


def _time(case: Case) -> float:
    return case.predicted_ms


def cells() -> str:
    """Makes the table of each cell's rank."""
    found = judged()
    lines = []
    for name in dict.fromkeys(case.cell for case in found):
        of_cell = [case for case in found if case.cell == name]
        all_pairs, near = (rank(of_cell, _time, near=near) for near in (False, True))
        width = median((case.most - case.least) / case.ratio for case in of_cell)
        lines.append(
            (
                name,
                str(len(of_cell)),
                f"{width:.2%}",
                f"{all_pairs.rank:.2f}",
                str(all_pairs.pairs),
                f"{near.rank:.2f}" if near.pairs else "",
                str(near.pairs),
            )
        )
    return markdown(("cell", "schedules", "interval", "rank", "pairs", "rank within 5 %", "pairs"), lines)


def worst() -> str:
    """Makes the table of the neighbours with the largest errors."""
    found = sorted(filter(is_neighbour, judged()), key=error_of_ratio, reverse=True)[:WORST]
    lines = [
        (
            f"`{case.schedule}`",
            case.cell,
            f"{case.predicted_ratio:.3f}",
            f"{case.ratio:.3f}",
            f"{error_of_ratio(case):.1%}",
        )
        for case in found
    ]
    return markdown(("schedule", "cell", "predicted", "measured", "error"), lines)


def timelines() -> str:
    """Makes a table of what measured and predicted timelines of some misses say, measured / predicted."""

    lines = []
    for name in MISSES:
        both = [recorded(f"{kind}-{name}") for kind in ("experiment", "predicted")]
        parts = ([of(roles) for roles in both] for of in (lambda roles: roles.busy, _turns, _loads_of_v))
        lines.append((f"`{name}`", *(f"{measured:.0%} / {predicted:.0%}" for measured, predicted in parts)))
    return markdown(("schedule", "tensor pipe busy", "consumers wait for turns and K", "producer loads V"), lines)


def _turns(roles: Roles) -> float:
    # On the GPU a wait for a turn shows in the next one, which is for K.
    waits = [What("wait", name) for name in (NAMED_BARRIER, "K_full")]
    return mean(sum(shares.parts.get(wait, 0) for wait in waits) / shares.cycles for shares in roles.multiplying)


def _loads_of_v(roles: Roles) -> float:
    producer = roles.shares["producer"]
    return producer.parts[What("load", "V")] / producer.cycles


def bias() -> str:
    """Says by how much the neighbours of best_causal are slower than predicted."""
    found = [case for case in judged() if is_neighbour(case) and case.cell.startswith("h16_c-")]
    return f"Its neighbours are slower than predicted, by {median(1 - case.predicted_ratio / case.ratio for case in found):.1%} in the median."


MADE: dict[str, Make] = filling(
    "docs/model.md",
    {"score": score, "meaning": meaning, "cells": cells, "worst": worst, "timelines": timelines, "bias": bias},
)
