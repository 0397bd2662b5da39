"""Writes for ladders' pages what ncu counted: bytes beside theory, and stalls."""

from __future__ import annotations

from pages.made import RESULTS
from tl_attention.lab.files.ladder_file import Ladder
from tl_attention.lab.measure import counters, traffic
from tl_attention.lab.measure.profile import ProfileRow
from tl_attention.lab.measure.records import read_all
from tl_attention.lab.show import profile
from tl_attention.lab.show.report import PEER_NAMES
from tl_attention.lab.show.table import markdown
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


def profile_parts() -> dict[str, object]:
    """Returns the parts of the work log's page: its profile repeated, and by counters what `best` does otherwise."""
    rows = read_all(ProfileRow, RECORD)
    seed = next(row for row in rows if row.name == SEED)
    best = next(row for row in rows if row.name == BEST and row.shape == seed.shape)
    counted, bytes_of = profile.table(seed), profile.traffic_table([best])
    of_best = sorted([row for row in rows if row.name == BEST], key=lambda row: row.shape.batch)
    others = [row for row in rows if row.shape == best.shape and row.name.startswith("experiments/")]
    headings = ("schedule", "batch", "row tiles for each SM", "DRAM read / Q, K and V once", "missed in L2 / the same")
    return {
        "seed": seed,
        "share": {row.name: _share(row) for row in (seed, best)},
        "counted": markdown(
            (*counted.headings, "text, H100"), [(*line, TEXT.get(line[0], "")) for line in counted.rows]
        ),
        "traffic": bytes_of.picked(range(1, len(bytes_of.headings))).markdown(),
        "dram": markdown(headings, [_dram_line(row) for row in (*of_best, *others)]),
    }


def _dram_line(row: ProfileRow) -> tuple[str, ...]:
    tiles = row.shape.batch * row.shape.heads * row.shape.seq_q / BLOCK_M / HOPPER.sms
    missed, once = row.bytes_of(counters.SECTORS_MISSED), traffic.input_bytes(row.shape)
    assert missed is not None, "it was counted"
    return row.name, str(row.shape.batch), f"{tiles:.1f}", _share(row), f"{missed / once:.3f}"


def _share(row: ProfileRow) -> str:
    read = row.bytes_of(counters.DRAM_READ)
    assert read is not None, "it was counted"
    return f"{read / traffic.input_bytes(row.shape):.3f}"


def stalls(ladder: Ladder) -> str:
    """Makes the table of what warps wait for in each step, as percent of all stalls."""
    names = {step.schedule.name: step.name for step in ladder.measured if step.schedule} | PEER_NAMES
    rows = [row for row in read_all(ProfileRow, RECORD) if row.shape == ladder.shape and row.name in names]
    table = profile.stall_table(rows)
    return markdown([names.get(heading, heading) for heading in table.headings], table.rows)
