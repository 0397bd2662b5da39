"""Makes the tables of docs/where-the-time-goes.md, and that of a ladder, from the timelines in results/timelines/.

A role that issues products is counted by KV block: so tiles of several lengths compare. What lies between the last product
of a tile and the first one of the next is its boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

from pages.made import RESULTS, Make
from pages.outcomes import EXPERIMENTS, outcomes
from tl_attention.measure.profile import ProfileRow
from tl_attention.measure.records import read_rows
from tl_attention.show.table import markdown
from tl_attention.trace.shares import Shares, of_block, tensor_pipe
from tl_attention.trace.timeline import Timeline, What

TIMELINES = RESULTS / "timelines"
SCHEDULES = ("seed", "inferred", "fa3_overlap", "ws_seed", "best", "best_causal", "d256_causal", "mma_sync")
THREADS, COPIES, BARRIER = "threads", "copies", "named barrier"
# What a role's time goes to, in the order of a table's columns.
COLUMNS = ("issues", "vector", "waits for products", "for data", "for room", "for other threads", "loads, stores")
PAGE = "docs/where-the-time-goes.md"
COUNTED = RESULTS / "profile-experiments-h200.jsonl"
CYCLES, BUSY = "sm__cycles_active.avg", "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"


def column(what: What) -> str:
    """Returns the column of a table in which a thing that a role does is counted."""
    if what.kind == "wait":
        if what.name in ("mma0", "mma1"):
            return "waits for products"
        if what.name.endswith("_empty"):
            return "for room"
        return "for other threads" if what.name in (THREADS, BARRIER) else "for data"
    return {"issue": "issues", "vector": "vector"}.get(what.kind, "loads, stores")


@dataclass(frozen=True)
class Roles:
    """Roles are those of a recorded timeline's first thread block."""

    timeline: Timeline

    @cached_property
    def shares(self) -> Mapping[str, Shares]:
        """Returns the Shares of each role, by its name."""
        return of_block(self.timeline, self.timeline.lines[0].block)

    @property
    def multiplying(self) -> Sequence[Shares]:
        """Returns the Shares of those that issue products."""
        return [one for one in self.shares.values() if one.issues]

    @property
    def busy(self) -> float:
        """Returns the part of the time, 0 to 1, in which the tensor pipe works."""
        found = tensor_pipe(self.timeline, [*self.shares.values()])
        assert found is not None
        return found

    def in_loop(self, columns: Iterable[str] = COLUMNS) -> float:
        """Returns the mean cycles of a KV block, without the boundaries of tiles, that go to some columns of the table."""
        chosen = {*columns}
        return mean(sum(_inside(one)[name] for name in chosen) / one.kv_blocks for one in self.multiplying)

    def of(self, what: What) -> float:
        """Returns the mean cycles of a KV block that go to one thing, without the boundaries of tiles."""
        return mean((one.parts.get(what, 0) - one.boundary.get(what, 0)) / one.kv_blocks for one in self.multiplying)

    @property
    def boundary(self) -> float:
        """Returns the mean cycles of a boundary between tiles."""
        return mean(sum(one.boundary.values()) / one.tiles for one in self.multiplying)

    @property
    def work(self) -> float:
        """Returns for how many cycles a role's products of a KV block keep the tensor pipe busy."""
        return sum(self.timeline.about["product_cycles"].values())


def _inside(shares: Shares) -> dict[str, int]:
    """Returns a role's cycles by column, without the boundaries of tiles."""
    found = dict.fromkeys(COLUMNS, 0)
    for what, cycles in shares.parts.items():
        found[column(what)] += cycles - (shares.boundary.get(what, 0))
    return found


def recorded(name: str) -> Roles:
    """Reads a recorded timeline."""
    return Roles(Timeline.read(TIMELINES / f"{name}.json"))


# --- the eight schedules -------------------------------------------------------------------------------------------


def schedules() -> str:
    """Makes the table of where each role's time goes."""
    lines = []
    for name in SCHEDULES:
        found = recorded(name)
        for role, shares in found.shares.items():
            parts = _inside(shares)
            boundary = sum(shares.boundary.values())
            assert sum(parts.values()) + boundary == shares.cycles
            lines.append((f"`{name}`", role, *(_percent(value, shares) for value in (*parts.values(), boundary))))
    return markdown(("schedule", "role", *COLUMNS, "tile boundary"), lines)


def _percent(cycles: int, shares: Shares) -> str:
    return f"{100 * cycles / shares.cycles:.1f} %" if cycles else ""


def witnesses() -> str:
    """Makes the table of what the marks changed, and of how busy the tensor pipe is by the marks and by ncu."""
    lines = []
    for name in SCHEDULES:
        found, about = recorded(name), recorded(name).timeline.about
        few, marked = about["tile_cycles"]
        lines.append(
            (
                f"`{name}`",
                about["shape"],
                f"{100 * found.busy:.1f} %",
                f"{about['ncu']['percent']:.1f} %",
                f"{about['time_with_marks'][0]:.3f}",
                f"{marked / few:.3f}",
                "; ".join(_moved(about["machine_code"])) or "nothing",
            )
        )
    return markdown(
        ("schedule", "problem", "busy, by marks", "busy, by ncu", "time", "cycles of a tile", "what ptxas moved"), lines
    )


def _moved(code: Mapping[str, Sequence[object]]) -> Iterator[str]:
    for kind, (plain, marked) in code.items():
        if plain != marked and isinstance(plain, list) and isinstance(marked, list):
            yield f"{kind} {', '.join(map(str, plain))} -> {', '.join(map(str, marked))}"


# --- experiments ---------------------------------------------------------------------------------------------------


def experiments(prefix: str, base: str, names: Sequence[str]) -> str:
    """Makes the table of experiments whose timelines have this prefix, in cycles of a KV block, beside their base."""
    counted = {
        row.name.rpartition("/")[2]: row
        for row in read_rows(COUNTED, ProfileRow)
        if row.name == base or "/" in row.name
    }
    group = next(one for one in EXPERIMENTS if one.base == base)
    said = {one.name: one for one in outcomes(group)}
    of_base = recorded(f"{prefix}-{base}")
    lines = []
    for name in (base, *names):
        found = recorded(f"{prefix}-{name}")
        scale = of_base.work / found.work
        of_ncu, of_ncu_base = counted[name].metrics, counted[base].metrics
        first, second = _vector(found)
        parts = (
            found.in_loop(["issues"]),
            first,
            second,
            found.in_loop(["vector"]) - first - second,
            found.in_loop(["waits for products", "for data", "for other threads"]),
            found.boundary / found.multiplying[0].kv_blocks * found.multiplying[0].tiles,
        )
        outcome = said.get(name)
        lines.append(
            (
                f"`{name}`",
                f"{outcome.words.partition(':')[0]}" if outcome else "",
                f"{outcome.speed:.3f}" if outcome else "1",
                f"{of_ncu_base[CYCLES] / of_ncu[CYCLES]:.3f}",
                f"{of_ncu[BUSY]:.1f} %",
                *(f"{part * scale:,.0f}" for part in parts),
                f"{scale * sum(parts):,.0f}",
            )
        )
    return markdown(
        (
            *("experiment", "predicted", "speed", "speed in cycles", "tensor pipe"),
            *("issues", "vector before MMA1's wait", "behind it", "other vector", "waits", "boundary", "sum"),
        ),
        lines,
    )


def _vector(found: Roles) -> tuple[float, float]:
    """Returns the cycles of the vector statements before the wait for MMA1 and behind it: the two groups that take most."""
    whats = {what for one in found.multiplying for what in one.parts if what.kind == "vector"}
    most = sorted(whats, key=found.of)[-2:]
    order = [found.timeline.whats.index(what) for what in most]
    first, second = (most[n] for n in sorted(range(2), key=order.__getitem__))
    return found.of(first), found.of(second)


MADE: dict[str, Make] = {}
