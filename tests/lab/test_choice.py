"""A configuration is chosen: some kernels are left out for a reason, others timed in turn, all by stand-ins."""

import pytest
from stand_in import Compilers, Gpu, on_a_machine

from tl_attention.errors import InputError
from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure import gpu_worker
from tl_attention.lab.measure.bench import MOST_STACK_BYTES, choose
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.pool import CallFailed
from tl_attention.lab.measure.published import space
from tl_attention.lab.measure.records import MATMUL, Row
from tl_attention.lab.measure.session import Session
from tl_attention.lab.oracle.reference import ErrorReport
from tl_attention.lab.show.ladder import counted
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.configuration import Configuration, parse, schedule_of

__all__ = ["on_a_machine"]
pytestmark = pytest.mark.usefixtures("on_a_machine")
SHAPE = AttentionShape(1, 2, 256, 256, 128)
WRONG = ErrorReport(max_abs=1.0, rms=1.0, budget_max_abs=1e-4, budget_rms=1e-4, finite=True)


def named(options: str, tile: str = "128, 64, 64, 4") -> Configuration:
    return parse(f"({tile}): async+eager+swizzled+{options}")


class Pool(Compilers):
    """This pool compiles each candidate to code of its own; `found` has other (code, report), or what went wrong."""

    def __init__(self, found: dict[Configuration, tuple[str, StaticReport] | Compiled] | None = None):
        super().__init__()
        self.found = {str(one): what for one, what in (found or {}).items()}

    def compiled(self, candidate):
        what = self.found.get(candidate.name, (candidate.name, StaticReport(200, 0, 48 * 1024)))
        return what if isinstance(what, Compiled) else Compiled(*what)


def chosen(
    configurations: list[Configuration], gpu: Gpu | None = None, pool: Pool | None = None, **options
) -> tuple[list[Row], list[Row], list[Row]]:
    """(a row of each, the best of the tiles, what was recorded)."""
    recorded: list[Row] = []
    with Session(recorded.append, seed=1, compilers=pool or Pool(), worker=gpu or Gpu(), arch="sm_90a") as session:
        return *choose(configurations, SHAPE, session, **{"rounds": 2, "rounds_of_best": 3} | options), recorded


def test_each_is_left_out_for_its_reason_or_timed():
    refused, unbuilt, spilling = (
        named("load_0_0_0_fragments", "128, 128, 64, 4"),
        named("load_2_0_0_fragments"),
        named("load_2_2_0_fragments"),
    )
    roomless, wrong = named("load_2_2_2_fragments", "128, 256, 64, 16"), named("load_0_2_2_fragments")
    good, same, just = named("load_2_2_2_fragments"), named("load_0_2_0_fragments"), named("load_2_0_2_fragments")
    moved, copy = named("load_2_2_2_fragments+buffer"), named("load_0_2_2_fragments+buffer")
    pool = Pool(
        {
            unbuilt: Compiled(status="compile_error", error="nvcc said no"),
            spilling: ("s", StaticReport(255, MOST_STACK_BYTES + 8, 1024)),
            just: ("j", StaticReport(255, MOST_STACK_BYTES, 1024)),
            roomless: ("r", StaticReport(255, 0, 1024)),
            good: ("g", StaticReport(229, 0, 1024)),
            same: ("g", StaticReport(229, 0, 1024)),
            moved: ("m", StaticReport(229, 0, 1024, machine_code="0123")),
            copy: ("c", StaticReport(229, 0, 1024, machine_code="0123")),
        }
    )
    gpu = Gpu({("verify", str(wrong)): (WRONG, True)})
    asked = [refused, unbuilt, spilling, roomless, wrong, good, same, just, moved, copy]
    rows, _, recorded = chosen(asked, gpu, pool)
    assert counted(rows) == (
        "10 in the space: 2 were refused before they were timed, and 8 were compiled. Among the compiled ones 2 were left out "
        "for spills or room, 2 have the same code as another, and 3 were timed"
    )
    reasons = {
        refused: ("refused", "needs 280 registers per thread for fragments alone"),
        unbuilt: ("compile_error", "nvcc said no"),
        spilling: ("compiled", "spills 520 bytes a thread, expected 512 at most"),
        roomless: ("compiled", "512 threads of 255 registers, 1,024 bytes: no block fits an SM of sm_90a (H100, H200)"),
        wrong: ("wrong", ""),
        good: ("ok", ""),
        same: ("compiled", f"the machine code is that of {good}"),
        moved: ("ok", ""),
        copy: ("compiled", f"the machine code is that of {moved}"),
        just: ("ok", ""),
    }
    assert [row.name for row in rows] == list(map(str, asked))
    for one, row in zip(asked, rows):
        status, reason = reasons[one]
        assert row.status == status and reason in row.reason, row
        assert (row.median_ms is not None) == (status == "ok")
    assert rows[6].same_code_as == str(good) and rows[6].device is None
    assert set(gpu.named("verify")) == {str(wrong), str(good), str(just), str(moved)}
    # Each is recorded once, the best of the tile a second time.
    assert len(recorded) == len(asked) + 1 and {row.name for row in recorded} == set(map(str, asked))


def test_the_best_of_each_tile_are_timed_again_beside_each_other():
    tiles = [(128, M, N, 4) for M in (64, 128) for N in (32, 64)]
    configurations = [one for one in space() if one.fragments == (2, 2, 2)]
    fast = {str(one): 1.0 for one in configurations if one.buffer and one.opt_softmax}
    gpu = Gpu(ms=lambda candidate: fast.get(candidate.name, 2.0))
    rows, best, recorded = chosen(configurations, gpu)
    assert {row.name for row in best} == set(fast) and len(best) == len(tiles)
    assert [row.method for row in rows] != [row.method for row in best]
    sampled = gpu.named("sample")
    # Tile by tile, its four and a matrix product twice; then the four tiles' and a matrix product three times.
    assert len(sampled) == 4 * 2 * (4 + 1) + 3 * (4 + 1)
    assert set(sampled[-15:]) == {*fast, MATMUL}
    assert {parse(name).tile for name in sampled[:10] if name != MATMUL} == {tiles[0]}
    assert [row.name for row in recorded[-4:]] == [str(one) for one in configurations if str(one) in fast]


def test_the_last_times_decide():
    """The tile that was slower at first is faster when both are timed beside each other."""
    small, large = named("load_2_2_2_fragments"), named("load_2_2_2_fragments", "128, 128, 32, 4")
    seen: dict[str, int] = {}

    def ms(candidate: Candidate) -> float:
        seen[candidate.name] = seen.get(candidate.name, 0) + 1
        return 1.0 if (candidate.name == str(small)) == (seen[candidate.name] <= 2) else 3.0

    rows, best, _ = chosen([small, large], Gpu(ms=ms))
    assert [row.name for row in best] == [str(large), str(small)]
    assert rows[0].median_ms == 1.0 and best[0].median_ms == 1.0


def test_a_best_that_breaks_the_worker_is_no_best():
    small, large = named("load_2_2_2_fragments"), named("load_2_2_2_fragments", "128, 128, 32, 4")

    class Breaks(Gpu):
        def call(self, function, *arguments, timeout_s):
            if function is gpu_worker.sample and arguments[0].name == str(small) and len(self.named("load")) > 4:
                raise CallFailed("crashed", "an illegal address")
            return super().call(function, *arguments, timeout_s=timeout_s)

    rows, best, recorded = chosen([small, large], Breaks())
    assert [row.name for row in best] == [str(large)]
    assert len([row for row in rows if row.median_ms]) == 2 and [row.status for row in recorded[-2:]] == [
        "crashed",
        "ok",
    ]


def test_without_a_gpu_it_is_compiled_and_checked():
    class Nothing(Gpu):
        def call(self, function, *arguments, timeout_s):
            return (
                None if function is gpu_worker.device_name else super().call(function, *arguments, timeout_s=timeout_s)
            )

    one, spilling = named("load_2_2_2_fragments", "128, 64, 32, 4"), named("load_2_2_2_fragments")
    rows, best, recorded = chosen([one, spilling], Nothing(), Pool({spilling: ("s", StaticReport(255, 1000, 1024))}))
    assert [row.status for row in rows] == ["checked_on_cpu", "compiled"] and best == []
    assert all(row.fingerprint and row.median_ms is None for row in rows)
    assert len(recorded) == 2 and rows[0].registers == 200


def test_equal_configurations_are_one():
    rows, _, _ = chosen([named("load_2_2_2_fragments")] * 2)
    assert len(rows) == 1 and rows[0].median_ms


def test_a_configuration_of_another_head_dim_is_refused_before_anything_is_compiled():
    with pytest.raises(InputError, match=r"\): async.*: head_dim 64, expected 128 as of \(1, 2, 256, 128\)"):
        chosen([named("load_2_2_2_fragments"), named("load_2_2_2_fragments", "64, 64, 64, 4")])


def test_what_is_left_out_of_a_session_is_recorded():
    one, recorded = next(iter(space())), []
    candidate = Candidate(str(one), SHAPE, Planned(schedule_of(one)))
    with Session(recorded.append, seed=1, compilers=Compilers(), worker=Gpu()) as session:
        [ticket] = session.compiled([session.add(candidate)])
        assert not ticket.done
        session.leave_out(ticket, "it spills")
        assert ticket.done and (ticket.row.status, ticket.row.reason) == ("compiled", "it spills")
    assert recorded == [ticket.row]
