"""A search's outcome is told as its page shows it, and its winner is written as a schedule's file."""

from __future__ import annotations

import datetime
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import FOUND_SCHEDULE
from tl_attention.lab.measure.candidate import Candidate, called
from tl_attention.lab.measure.records import Row
from tl_attention.lab.search.final import AGAIN
from tl_attention.lab.search.proposals import FIRST_DRAWN
from tl_attention.lab.search.search import kernel_of
from tl_attention.lab.search.study import DRAWN, Result, Study, Worker
from tl_attention.lab.show import diff
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.catalogue import names
from tl_attention.schedule.files.named import load
from tl_attention.schedule.schedule import Schedule

MOST_REASONS, MOST_MATTERED = 12, 15
# What each worker counts.
COUNTED = ("judged", "refused")


class Outcome:
    """An Outcome is what a study has found for a problem, with the rows of a final where there was one."""

    def __init__(self, study: Study, shape: AttentionShape, card: str, final: Sequence[Row]) -> None:
        self._study, self._shape, self._card = study, shape, card
        self._final = [row for row in final if row.against]
        named = {result.name: result for result in study.timed}
        self.baseline = named.get(final[0].name) if final else next(iter(named.values()), None)
        fastest = sorted(self._final, key=lambda row: _speeds(row)[0], reverse=True)
        of_final = [named[row.name] for row in fastest if row.name in named]
        # The best by its races where no final was held.
        self.winner = next(iter(of_final or named.values()), None)

    def kernel(self, result: Result) -> Candidate:
        """Returns the kernel of a trial."""
        return kernel_of(self._study, self._shape, result)

    def nearest(self, schedule: Schedule) -> Candidate:
        """Returns the kernel of that shipped schedule from which a schedule differs in fewest keys."""
        shipped = {name: load(name) for name in names()}
        same = {name: one for name, one in shipped.items() if one.lowering == schedule.lowering}
        name = min(same, key=lambda name: len([*diff.changed_keys(same[name], schedule)]))
        return called(name, self._shape, Planned(same[name]))

    def write(self, winner: Result, file: Path) -> None:
        """Writes the winner's schedule to a file whose head says where it came from."""
        today = datetime.datetime.now(datetime.UTC).date()
        said = [f"tl-attention search, {today}: {winner.name} of {self._study.name}, {self._card}"]
        for row in self._final:
            if row.name == winner.name and winner is not self.baseline and self.baseline:
                speed, low, high = _speeds(row)
                source = f"{self.baseline.name}, which was {self.baseline.source}"
                said.append(f"{speed:.4f} ({low:.4f} to {high:.4f}) of the speed of {source}")
        keys = {"summary": f"found by a search for {self._shape}"[:100], "head_dims": [self._shape.head_size]}
        keys |= self.kernel(winner).ours.schedule.model_dump(mode="json", exclude_defaults=True)
        text = yaml.safe_dump(keys, sort_keys=False, default_flow_style=None, width=100)
        user_file.write(file, "".join(f"# {line}\n" for line in said) + text, FOUND_SCHEDULE)

    def told(self, measured: bool, files: Mapping[str, str | None]) -> dict[str, Any]:
        """Returns what the page shows of a search; `files` has the names of the winner's other files."""
        study, results = self._study, self._study.results
        by_time = sorted(study.timed, key=lambda result: result.at)
        zero = self.baseline.value if self.baseline else 0.0
        raced = {result.number: [result.at, math.exp(result.value - zero)] for result in by_time}
        left_out = Counter(result.reason.partition(":")[0] for result in results if result.reason)
        drawn = [result for result in by_time if result.source == DRAWN]
        lines = []
        if drawn:
            median = math.exp(statistics.median(result.value for result in drawn) - zero)
            lines.append(f"The median of {len(drawn)} legal draws has {median:.3f} of the baseline's speed.")
        workers = study.workers()
        judged, refused = (sum((Counter(one.told.get(name, {})) for one in workers), Counter()) for name in COUNTED)
        faster = [result for result in by_time if result.verdict in ("first", "faster")]
        return {
            "study": study.name,
            "problem": f"{self._shape}",
            "card": self._card,
            "measured": measured,
            "seconds": max((one.told.get("seconds", 0.0) for one in workers), default=0.0),
            "baseline": self.baseline.name if self.baseline else "",
            "funnel": [
                ["proposed", judged.total()],
                ["legal", len(results) - left_out["refused"]],
                ["compiled", sum(result.fingerprint is not None for result in results)],
                ["raced", len(by_time)],
                ["faster than the incumbent", len(faster)],
            ],
            "refused": [*map(list, refused.most_common(MOST_REASONS))],
            "left_out": [*map(list, left_out.most_common(MOST_REASONS))],
            "raced": [[*raced[result.number], result.source, result.number] for result in by_time],
            "best": [[*raced[result.number], result.number] for result in faster],
            "workers": [*map(self._told_worker, workers)],
            "mattered": [*map(list, [*study.mattered().items()][:MOST_MATTERED])],
            "prediction": _ranked([(result.predicted_ms, -result.value) for result in drawn]) if measured else None,
            "sketch": _ranked([(result.guessed_ms, -result.value) for result in drawn]) if measured else None,
            "final": [
                {"name": row.name, "ms": row.median_ms, "status": row.status}
                | dict(zip(("speed", "low", "high"), _speeds(row)))
                for row in self._final
            ],
            "repeatability": next((abs(_speeds(row)[0] - 1) for row in self._final if row.name.endswith(AGAIN)), None),
            "winner": self._told_winner(self.winner, files) if self.winner else None,
            "lines": lines,
        }

    def _told_worker(self, worker: Worker) -> list[Any]:
        """Returns a worker's name, state, lapses, seconds, and how many it raced, and found to be the best."""
        raced = [result for result in self._study.timed if result.worker == worker.number]
        found = sum(result.verdict in ("first", "faster") for result in raced)
        name = f"{worker.number}: {worker.name}"
        return [name, worker.state, worker.lapses, worker.told.get("spent", 0.0), len(raced), found]

    def _told_winner(self, winner: Result, files: Mapping[str, str | None]) -> dict[str, Any]:
        schedule = self.kernel(winner).ours.schedule
        nearest = self.nearest(schedule)
        changed = diff.changed_keys(nearest.ours.schedule, schedule)
        told = [f"{key} {before} -> {after}" for key, before, after in changed]
        return {"name": winner.name, "nearest": nearest.name, "diff": told, **files}


def _speeds(row: Row) -> tuple[float, float, float]:
    """Returns the speed of a final's row as a part of the baseline's, and both ends of its interval."""
    assert row.against is not None
    low, high = row.against.interval or (math.nan, math.nan)
    return 1 / row.against.ratio, 1 / high, 1 / low


def _ranked(pairs: Sequence[tuple[float | None, float]]) -> dict[str, Any] | None:
    """Returns the rank correlation of pairs whose first number is known, None for too few, or where all are equal."""
    known = [(one, other) for one, other in pairs if one is not None]
    if len(known) < FIRST_DRAWN // 2 or any(len({*of}) == 1 for of in zip(*known)):
        return None
    ranks = [[sorted(of).index(value) for value in of] for of in zip(*known)]
    return {"n": len(known), "rank": statistics.correlation(*ranks)}
