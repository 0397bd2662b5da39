"""Writes for a ladder's page what ncu counted: bytes beside theory, why `best` reads some bytes twice, and stalls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pages.made import RESULTS
from tl_attention.lab.files.ladder_file import Ladder
from tl_attention.lab.measure import counters
from tl_attention.lab.measure.profile import ProfileRow
from tl_attention.lab.measure.records import read_all
from tl_attention.lab.show import profile
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown
from tl_attention.problem import traffic
from tl_attention.problem.card import HOPPER

RECORD = RESULTS / "profile-h200.jsonl"
# The work log's profile of its kernel on an H100, its GB and MB read as powers of two: see the page.
TEXT = {
    "duration": "15.38 ms",
    "compute throughput": "72.86 %",
    "SM busy": "73.33 %",
    "L1 throughput": "50.77 %",
    "L2 throughput": "48.13 %",
    "DRAM throughput": "4.16 %",
    "L1 hit rate": "0.00 %",
    "SMs' L2 hit rate": "95.08 %",
    "DRAM read": "1.50 GiB",
    "DRAM written": "505.66 MiB",
    "arrived in SMs": "64.50 GiB",
    "written to L2": "512.00 MiB",
}
SEED, BEST = "seed", "best"
# best has this block_M, and no experiment changes it.
BLOCK_M = 128
# Warps in percent of all stalls, as the texts have them: kernel, reason.
TEXT_STALLS = {
    "rtx3090": "On the text's card long_scoreboard falls from 15.15 % (kernel 2) to 0.95 % (kernel 3). From kernel 4 to kernel 5 "
    "barrier rises from 3.66 to 4.37 % and mio_throttle from 2.18 to 2.40 %.",
    "rtx3090_tuned": "On the text's card, from kernel 6 to kernel 7, barrier falls from 4.82 to 2.72 %, mio_throttle from 2.46 to "
    "1.95 % and short_scoreboard from 1.94 to 1.70 %.",
    "rtx5090": "The text names stalls without numbers: short_scoreboard (shared memory) disappears with v2, and long_scoreboard (global "
    "memory) with v3.",
}


def bytes_of_seed_and_best() -> Iterator[str]:
    """Repeats the work log's profile, and says what `best` does otherwise."""
    rows = read_all(ProfileRow, RECORD)
    seed = next(row for row in rows if row.name == SEED)
    best = next(row for row in rows if row.name == BEST and row.shape == seed.shape)
    yield "## The text's profile"
    yield (
        f"The text profiles its own schedule. We did the same with `tl-attention profile seed`, which runs ncu, on one "
        f"{seed.device} on {seed.run[:10]} ([the record](../../results/{RECORD.name})). The text says GB and means GiB: each of "
        "16384 thread blocks reads 64 KV blocks, with 32 KiB of K and 32 KiB of V each, and Q is read once. That is 64.5 x 2^30 "
        "bytes. The L2 hit rate of the text is the share of the SMs' loads that hit in L2."
    )
    counted = profile.table(seed)
    yield markdown((*counted.headings, "text, H100"), [(*line, TEXT.get(line[0], "")) for line in counted.rows])
    yield "## The same profile of best"
    yield (
        "In `best` two thread blocks share each load: L2 is read once, and both thread blocks get the data. So the theory counts K "
        "and V once for each pair of row tiles in *read from L2*, and once for each row tile in *arrived in SMs*. Q counts once."
    )
    bytes_of = profile.traffic_table([best])
    yield bytes_of.picked(range(1, len(bytes_of.headings))).markdown()
    yield from dram_of_best(rows, best)


def dram_of_best(rows: Sequence[ProfileRow], best: ProfileRow) -> Iterator[str]:
    """Says by counters why `best` reads more from memory than the size of Q, K and V."""
    yield "### Why best reads some of K and V twice"
    yield (
        f"`best` reads {_share(best)} times the size of Q, K and V from memory, and `seed` reads {_share(rows[0])} times that size. "
        "The factor grows with the length of the run, and it is 1 where tiles are handed out one by one. `best` has a static tile "
        "scheduler: each cluster (two thread blocks) knows its tiles from the beginning, and no cluster waits for another. So "
        "clusters may drift apart until L2 no longer has what the last one asks for. But "
        "[timelines](../where-the-time-goes.md#do-the-clusters-of-best-drift-apart) show them less than half a tile apart even "
        "at batch 8, so that something else must add to it. What, is not known."
    )
    of_best = [row for row in rows if row.name == BEST]
    others = [row for row in rows if row.shape == best.shape and row.name.startswith("experiments/")]
    found = [*sorted(of_best, key=lambda row: row.shape.batch), *others]
    headings = ("schedule", "batch", "row tiles for each SM", "DRAM read / Q, K and V once", "missed in L2 / the same")
    yield markdown(headings, [_dram_line(row) for row in found])
    yield (
        "At batch 4 these reads cost little: they take 4 % of the memory's rate. At larger batches they cost power. Even in a "
        "short run L2 misses a third more than the size of Q, K and V. The reason is that L2 has two "
        "halves, and a half that lacks a line asks the other half before it asks memory."
    )


def _dram_line(row: ProfileRow) -> tuple[str, ...]:
    tiles = row.shape.batch * row.shape.heads * row.shape.seq_q / BLOCK_M / HOPPER.sms
    missed, once = row.bytes_of(counters.SECTORS_MISSED), traffic.inputs(row.shape)
    assert missed is not None, "it was counted"
    return row.name, str(row.shape.batch), f"{tiles:.1f}", _share(row), f"{missed / once:.3f}"


def _share(row: ProfileRow) -> str:
    read = row.bytes_of(counters.DRAM_READ)
    assert read is not None, "it was counted"
    return f"{read / traffic.inputs(row.shape):.3f}"


def stalls(ladder: Ladder) -> Iterator[str]:
    """Says what warps wait for in each step, as percent of all stalls, beside the text's words."""
    names = {step.schedule.name: step.name for step in ladder.measured if step.schedule} | PEER_NAMES
    rows = [row for row in read_all(ProfileRow, RECORD) if row.shape == ladder.shape and row.name in names]
    yield "## What warps wait for"
    yield (
        f"The table has each stall in percent of all stalls, counted by ncu on one {rows[0].device} on {rows[0].run[:10]} "
        f"([the record](../../results/{RECORD.name})). `barrier` is __syncthreads, `long_scoreboard` is global memory, "
        "`short_scoreboard` is shared memory and exponentials, `mio_throttle` is a full queue of ldmatrix, `math_pipe_throttle` is "
        "busy tensor cores, and `wait` is a fixed latency."
    )
    table = profile.stall_table(rows)
    yield markdown([names.get(heading, heading) for heading in table.headings], table.rows)
    yield TEXT_STALLS[ladder.name]
