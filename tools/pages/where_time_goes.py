"""Makes the tables of docs/where-the-time-goes.md, and that of a ladder, from the timelines in results/timelines/.

A role that issues products is counted by KV block: so tiles of several lengths compare. What lies between the last
product of a tile and the first one of the next is its boundary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import mean

from pictures.timelines import SCHEDULES, recorded_timeline

from pages.made import RESULTS, Make, filling
from pages.outcomes import EXPERIMENTS, Outcome, outcomes
from tl_attention.codeproof.mark_places import NAMED_BARRIER
from tl_attention.lab.measure.counters import (
    CYCLES,
    FEWEST_CYCLES,
    INSTRUCTIONS,
    MOST_CYCLES,
    SELECTED,
    STALLS,
    TENSOR_PIPE,
    stalled,
)
from tl_attention.lab.measure.profile import ProfileRow
from tl_attention.lab.measure.records import read_all
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown
from tl_attention.lab.trace.flows import THREADS
from tl_attention.lab.trace.shares import PRODUCTS, Shares, shares_of_block, tensor_pipe
from tl_attention.lab.trace.timeline import Timeline, What

OTHER_THREADS = {THREADS, What("wait", NAMED_BARRIER)}
# What a role's time goes to, in the order of a table's columns.
COLUMNS = ("issues", "vector", "waits for products", "for data", "for room", "for other threads", "loads, stores")
# Links to the page begin with two or three steady iterations of a schedule.
TIMELINES_PAGE, SHOWN = "_extra/timelines.html", "30000+8000"
COUNTED = RESULTS / "profile-experiments-h200.jsonl"
# Experiments with a prediction that failed, by the prefix of their timelines, and the folders of their names.
FOLDERS = {"experiment": ("experiments",), "causal": ("experiments", "causal")}
WRONG = (
    *(f"wait_exactly_after_{columns}" for columns in (16, 32, 64, 80, 112)),
    *("waits_exact", "rescale_threshold", "cast_in_chunks", "rescale_early", "exp2_polynomial", "scale_not_fused"),
    *("v_stages_3", "block_M_192"),
)
WRONG_CAUSAL = ("static", "cluster_2", "waits_free", "rescale_threshold")
CASES = ("fa3-d256_16k", "fa3-d192_16k", "fa3-plain_16k", "fa3-softcap_16k", "fa3-plain_1k", "fa3-lse_1k")
FA3_STALLS = {
    "wait": "fixed latency",
    "gmma": "wgmma",
    "barrier": "named barrier",
    "long_scoreboard": "mbarriers",
    "dispatch_stall": "dispatch",
}


def column(what: What) -> str:
    """Returns the column of a table in which a thing that a role does is counted."""
    if what.kind == "wait":
        if what in PRODUCTS:
            return "waits for products"
        if what.name.endswith("_empty"):
            return "for room"
        return "for other threads" if what in OTHER_THREADS else "for data"
    return {"issue": "issues", "vector": "vector"}.get(what.kind, "loads, stores")


@dataclass(frozen=True)
class Roles:
    """Roles are those of a recorded timeline's first thread block."""

    timeline: Timeline

    @cached_property
    def shares(self) -> Mapping[str, Shares]:
        """Returns the Shares of each role, by its name."""
        return shares_of_block(self.timeline, self.timeline.lines[0].block)

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
        """Returns the mean cycles of a KV block, without tiles' boundaries, that go to some columns of the table."""
        inside = ((_inside(one), one.kv_blocks) for one in self.multiplying)
        return mean(sum(parts[name] for name in columns) / kv_blocks for parts, kv_blocks in inside)

    def of(self, what: What) -> float:
        """Returns the mean cycles of a KV block that go to one thing, without the boundaries of tiles."""
        return mean((one.parts.get(what, 0) - one.boundary.get(what, 0)) / one.kv_blocks for one in self.multiplying)

    @property
    def work(self) -> float:
        """Returns for how many cycles a role's products of a KV block keep the tensor pipe busy."""
        return sum(self.timeline.about.product_cycles.values())


def _inside(shares: Shares) -> dict[str, int]:
    """Returns a role's cycles by column, without the boundaries of tiles."""
    found = dict.fromkeys(COLUMNS, 0)
    for what, cycles in shares.parts.items():
        found[column(what)] += cycles - shares.boundary.get(what, 0)
    return found


def recorded(name: str) -> Roles:
    """Reads a recorded timeline."""
    return Roles(recorded_timeline(name))


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
        found = recorded(name)
        about = found.timeline.about
        assert about.tile_cycles and about.ncu and about.time_with_marks
        few, marked = about.tile_cycles
        lines.append(
            (
                f"`{name}`",
                about.shape,
                f"{100 * found.busy:.1f} %",
                f"{about.ncu.percent:.1f} %",
                f"{about.time_with_marks[0]:.3f}",
                f"{marked / few:.3f}",
                "; ".join(_moved(about.machine_code)) or "nothing",
            )
        )
    return markdown(
        ("schedule", "problem", "busy, by marks", "busy, by ncu", "time", "cycles of a tile", "what ptxas moved"), lines
    )


def _moved(code: Mapping[str, tuple[object, object]]) -> Iterator[str]:
    for kind, (plain, marked) in code.items():
        if plain != marked and isinstance(plain, tuple) and isinstance(marked, tuple):
            yield f"{kind} {', '.join(map(str, plain))} -> {', '.join(map(str, marked))}"


# --- what is compared with a schedule --------------------------------------------------------------------------------

HEADINGS = ("issues", "row maximum", "other vector", "waits", "boundary", "sum")


def split(found: Roles, scale: float = 1.0) -> list[str]:
    """Returns the cells below HEADINGS: the mean cycles of a role for a KV block, times `scale`."""
    with_maximum = sum(found.of(what) for what in _vector(found) if "row_max" in what.name)
    boundary = mean(sum(one.boundary.values()) / one.kv_blocks for one in found.multiplying)
    vector, waits = found.in_loop(["vector"]), found.in_loop({*COLUMNS} - {"issues", "vector"})
    parts = (found.in_loop(["issues"]), with_maximum, vector - with_maximum, waits, boundary)
    return [f"{scale * part:,.0f}" for part in (*parts, sum(parts))]


def _vector(found: Roles) -> set[What]:
    return {what for one in found.multiplying for what in one.parts if what.kind == "vector"}


def experiments(prefix: str, base: str, names: Sequence[str], spread: bool = False) -> str:
    """Makes the table of experiments beside their base: what was predicted, measured and counted, and where time goes.

    `spread` adds the fewest and the most active cycles of an SM, over the mean.
    """
    rows = counted()
    problem = next(row.problem for row in rows if row.name == base)
    of_ncu = {row.name.rpartition("/")[2]: row.metrics for row in rows if row.problem == problem}
    said = {one.name: one for one in outcomes(next(one for one in EXPERIMENTS if one.base == base))}
    of_base = recorded(f"{prefix}-{base}")

    def line(name: str) -> tuple[str, ...]:
        found, metrics = recorded(f"{prefix}-{name}"), of_ncu[name]
        cycles = metrics[CYCLES]
        fewest, most = metrics[FEWEST_CYCLES] / cycles, metrics[MOST_CYCLES] / cycles
        return (
            f"{of_ncu[base][CYCLES] / cycles:.3f}",
            f"{metrics[TENSOR_PIPE]:.1f} %",
            *([f"{fewest:.2f} to {most:.2f}"] if spread else []),
            *split(found, of_base.work / found.work),
        )

    def head(name: str) -> tuple[str, ...]:
        link = f"{TIMELINES_PAGE}#{base},{'/'.join((*FOLDERS[prefix], name))}@{SHOWN}"
        return f"[`{name}`]({link})", _interval(said[name]), f"{said[name].speed:.3f}"

    columns = (
        "experiment",
        "predicted",
        "speed",
        "speed in cycles",
        "tensor pipe",
        *(["SMs' cycles / mean"] if spread else []),
    )
    lines = [(f"`{base}`", "", "", *line(base)), *((*head(name), *line(name)) for name in names)]
    return markdown((*columns, *HEADINGS), lines)


def _interval(outcome: Outcome) -> str:
    """Returns the interval of speeds that was predicted, as one number where it is one."""
    ends = outcome.predicted.low, outcome.predicted.high
    return " to ".join(dict.fromkeys(f"{speed:.2f}" for speed in ends))


def counted() -> list[ProfileRow]:
    """Reads what ncu counted, without marks."""
    return read_all(ProfileRow, COUNTED)


def beside_fa3() -> str:
    """Makes the table of what ncu counts for FlashAttention-3 and for our kernel."""
    lines = [
        (
            str(row.problem["head_dim"]),
            PEER_NAMES.get(row.name, f"`{row.name}`"),
            f"{row.metrics[CYCLES]:,.0f}",
            f"{row.metrics[TENSOR_PIPE]:.1f} %",
            f"{row.metrics[INSTRUCTIONS] / 1e6:,.0f}",
            *(f"{100 * row.metrics[stalled(reason)] / _all_stalls(row):.1f} %" for reason in FA3_STALLS),
        )
        for row in counted()
        if row.problem["head_dim"] > 128
    ]
    return markdown(
        ("head_dim", "kernel", "cycles of an SM", "tensor pipe", "million instructions", *FA3_STALLS.values()), lines
    )


def _all_stalls(row: ProfileRow) -> float:
    return sum(row.metrics[stalled(reason)] for reason in (*STALLS, SELECTED))


def cases() -> str:
    """Makes the table of our kernels' timelines where FlashAttention-3 is ahead."""
    lines = [
        (f"`{found.timeline.about.name}`", found.timeline.about.shape, f"{100 * found.busy:.1f} %", *split(found))
        for found in map(recorded, CASES)
    ]
    return markdown(("schedule", "problem", "tensor pipe", *HEADINGS), lines)


def steps(names: Mapping[str, str]) -> str:
    """Makes the table of {step: timeline}: how busy the tensor pipe was, and where a role's time goes."""
    lines = [
        (step, f"{100 * found.busy:.1f} %", *split(found)) for step, found in zip(names, map(recorded, names.values()))
    ]
    return markdown(("step", "tensor pipe", *HEADINGS), lines)


def drift() -> str:
    """Says how far the clusters of `best` drift apart."""
    found = recorded("drift").timeline
    skip = found.about.skip
    late = [line.times[0] - line.clock for line in found.lines]
    of_a_tile = mean(late) / skip
    return (
        f"On the problem {found.about.shape} all {len(late)} clusters of `best` were traced, at the end of a run. Their "
        f"tile number {skip} began between {min(late):,} and {max(late):,} cycles after the kernel: that is "
        f"{(max(late) - min(late)) / of_a_tile:.2f} of a tile apart."
    )


MADE: dict[str, Make] = filling(
    "docs/where-the-time-goes.md",
    {
        "schedules": schedules,
        "witnesses": witnesses,
        "experiments": partial(experiments, "experiment", "best", WRONG),
        "causal": partial(experiments, "causal", "best_causal", WRONG_CAUSAL, spread=True),
        "fa3": beside_fa3,
        "cases": cases,
        "drift": drift,
    },
)
