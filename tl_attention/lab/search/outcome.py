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
from tl_attention.lab.search.cells import mean_ms, rule, split
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
        self._final: dict[str, list[Row]] = {}
        for row in final:
            if row.against:
                self._final.setdefault(row.name, []).append(row)
        # What failed in one of several problems is no winner.
        most = max(map(len, self._final.values()), default=0)
        self._final = {name: rows for name, rows in self._final.items() if len(rows) == most}
        named = {result.name: result for result in study.timed}
        self.baseline = named.get(final[0].name) if final else next(iter(named.values()), None)
        fastest = sorted(self._final, key=lambda name: _speeds(self._final[name])[0], reverse=True)
        of_final = [named[name] for name in fastest if name in named]
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
        if winner is not self.baseline and self.baseline and winner.name in self._final:
            speed, low, high = _speeds(self._final[winner.name])
            source = f"{self.baseline.name}, which was {self.baseline.source}"
            said.append(f"{speed:.4f} ({low:.4f} to {high:.4f}) of the speed of {source}")
        said += self._of_rule(winner, file.stem)
        keys = {"summary": f"found by a search for {self._shape}"[:100], "head_dims": [self._shape.head_size]}
        keys |= self.kernel(winner).ours.schedule.model_dump(mode="json", exclude_defaults=True)
        text = yaml.safe_dump(keys, sort_keys=False, default_flow_style=None, width=100)
        user_file.write(file, "".join(f"# {line}\n" for line in said) + text, FOUND_SCHEDULE)

    def _of_rule(self, winner: Result, name: str) -> list[str]:
        """Returns what is said of several problems: each one's numbers, the split, and the rule to write."""
        shapes = [self._shape, *self._study.others]
        if len(shapes) == 1 or not self.baseline:
            return []
        rows = self._final.get(winner.name, [])
        speeds = [_speeds([row])[0] for row in rows] or [
            math.exp(own - before) for own, before in zip(winner.cells, self.baseline.cells)
        ]
        said = [f"{speed:.4f} x {self.baseline.name} on {shape}" for speed, shape in zip(speeds, shapes)]
        timed = [one for one in self._study.timed if len(one.cells) == len(shapes)]
        if found := split([one.cells for one in timed], shapes):
            first, second = timed[found.first].name, timed[found.second].name
            worth = f"which is worth {math.exp(found.worth):.4f} x the best single one in the mean"
            said.append(f"a split: {first} below {found.from_keys} keys and {second} from there, {worth}")
        record = "none yet"
        if rows:
            mean = statistics.geometric_mean(speeds)
            record = f"{name}.jsonl says {mean:.3f} x {self.baseline.name}, geometric mean of {len(shapes)} problems"
        return [*said, "The rule for defaults.yaml:", *rule(shapes, name, record)]

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
        if self.winner:
            lines += self._of_rule(self.winner, Path(files.get("file") or "found").stem)
        faster = [result for result in by_time if result.verdict in ("first", "faster")]
        return {
            "study": study.name,
            "problem": "; ".join(map(str, (self._shape, *study.others))),
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
                {"name": name, "ms": mean_ms([row.median_ms or math.nan for row in rows]), "status": rows[0].status}
                | dict(zip(("speed", "low", "high"), _speeds(rows)))
                for name, rows in self._final.items()
            ],
            "repeatability": next(
                (abs(_speeds(rows)[0] - 1) for name, rows in self._final.items() if name.endswith(AGAIN)), None
            ),
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


def _speeds(rows: Sequence[Row]) -> tuple[float, float, float]:
    """Returns the speed of a finalist as a part of the baseline's, and both ends of its interval.

    Of several problems each is the geometric mean: the ends then hold at least as well as in each of them.
    """
    numbers = []
    for row in rows:
        assert row.against is not None
        low, high = row.against.interval or (math.nan, math.nan)
        numbers.append((1 / row.against.ratio, 1 / high, 1 / low))
    speed, low, high = map(mean_ms, zip(*numbers))
    return speed, low, high


def _ranked(pairs: Sequence[tuple[float | None, float]]) -> dict[str, Any] | None:
    """Returns the rank correlation of pairs whose first number is known, None for too few, or where all are equal."""
    known = [(one, other) for one, other in pairs if one is not None]
    if len(known) < FIRST_DRAWN // 2 or any(len({*of}) == 1 for of in zip(*known)):
        return None
    ranks = [[sorted(of).index(value) for value in of] for of in zip(*known)]
    return {"n": len(known), "rank": statistics.correlation(*ranks)}
