"""Candidates are taken one by one, compiled while others are timed, and handed out once; what a comparison says."""

from __future__ import annotations

import random
import statistics
import threading
from dataclasses import replace
from itertools import cycle

import pytest
from known import Known
from moves.space import random_neighbour
from mutations import shipped
from stand_in import GOOD, Compilers, Gpu, on_a_machine

from tl_attention.measure.candidate import Candidate
from tl_attention.measure.peers import MATMUL
from tl_attention.measure.pool import CallFailed
from tl_attention.measure.records import CONFIDENCE, Comparison, Row, parse_line
from tl_attention.measure.session import Session, Ticket
from tl_attention.oracle.reference import ErrorReport
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

__all__ = ["on_a_machine"]
pytestmark = pytest.mark.usefixtures("on_a_machine")
SHAPE = AttentionShape(1, 2, 256, 256, 128)


def candidate(name: str = "seed", **fields) -> Candidate:
    schedule = shipped().get(name, shipped()["seed"])
    return Candidate(name, SHAPE, Planned(replace_keys(schedule, **fields) if fields else schedule))


def replace_keys(schedule, **fields):
    return type(schedule)(**schedule.model_dump() | fields)


def a_session(gpu: Gpu | None = None, record=lambda row: None, **options) -> Session:
    return Session(record, seed=1, worker=gpu or Gpu(), **({"compilers": Compilers()} | options))


class LaterCompilers(Compilers):
    """These compilers compile when the test says so."""

    def __init__(self, **options):
        super().__init__(**options)
        self.waiting: list[tuple] = []

    def submit(self, candidate, done):
        self.waiting.append((candidate, done))

    def compile_next(self) -> None:
        super().submit(*self.waiting.pop(0))


def test_every_candidate_is_handed_out_once_in_the_order_of_their_compilation() -> None:
    compilers = LaterCompilers()
    with a_session(compilers=compilers) as session:
        tickets = {name: session.add(candidate(name)) for name in ("seed", "source_order", "prefetch", "seed_stages4")}
        tickets["cudnn"] = session.add(Candidate("cudnn", SHAPE))
        assert session.outstanding == 5 and "294,912 bytes" in tickets["seed_stages4"].refusal
        prepared = session.prepared()
        assert [next(prepared) for _ in range(2)] == [tickets["seed_stages4"], tickets["cudnn"]]
        assert session.outstanding == 3 and tickets["seed_stages4"].done and not tickets["cudnn"].done
        compilers.waiting.reverse()
        for name in ("prefetch", "source_order", "seed"):
            compilers.compile_next()
            assert next(prepared) is tickets[name] and tickets[name].row.registers == 200
        assert next(prepared, None) is None and session.outstanding == 0
    assert compilers.stopped


def test_the_body_of_the_loop_adds_while_it_verifies_and_times() -> None:
    names, handed_out = iter(["source_order", "prefetch"]), []
    with a_session() as session:
        session.add(candidate())
        for ticket in session.prepared():
            assert session.verify(ticket)
            for name in [next(names, None)]:
                if name is not None:
                    session.add(candidate(name))
            session.time([ticket])
            handed_out.append(ticket.candidate.name)
    assert handed_out == ["seed", "source_order", "prefetch"]


def test_while_one_is_timed_the_next_is_compiled() -> None:
    """The stand-in for the GPU answers only when the compilers are done with what was added meanwhile."""
    done = threading.Event()

    class Background(Compilers):
        def submit(self, candidate, submitted):
            def compile() -> None:
                Compilers.submit(self, candidate, submitted)
                done.set()

            threading.Thread(target=compile).start()

    def ms(of: Candidate) -> float:
        assert done.wait(10), "compiling waits for the GPU"
        return 1.0

    with a_session(Gpu(ms=ms), compilers=Background()) as session:
        session.add(candidate())
        for number, ticket in enumerate(session.prepared()):
            session.verify(ticket)
            if number == 0:
                done.clear()
                session.add(candidate("source_order"))
            session.time([ticket])
    assert number == 1


def test_another_thread_adds_and_the_loop_waits_for_it() -> None:
    start, seen = threading.Event(), []

    def feed() -> None:
        for name in ("source_order", "prefetch", "seed_stages4"):
            assert start.wait(10)
            session.add(candidate(name))

    with a_session() as session:
        feeder = threading.Thread(target=feed)
        session.add(candidate())
        feeder.start()
        for ticket in session.prepared(more=feeder.is_alive):
            seen.append(ticket.candidate.name)
            start.set()
    assert seen == ["seed", "source_order", "prefetch", "seed_stages4"]


def test_rows_are_recorded_when_they_are_complete_and_not_before() -> None:
    rows: list[Row] = []
    wrong = {("verify", "prefetch"): (ErrorReport(1.0, 1.0, 2e-4, 2e-4, True), True)}
    with a_session(Gpu(wrong), rows.append) as session:
        for name in ("racing", "seed", "prefetch", "seed_stages4"):
            session.add(candidate(name))
        tickets = list(session.prepared())
        assert [row.name for row in rows] == ["racing", "seed_stages4"]
        assert [session.verify(ticket) for ticket in tickets if not ticket.done] == [True, False]
        assert [row.name for row in rows] == ["racing", "seed_stages4", "prefetch"]
        session.time([ticket for ticket in tickets if not ticket.done])
    assert [row.status for row in rows] == ["refused", "refused", "wrong", "ok"]
    assert {row.seed for row in rows} == {1} and {id(row) for row in rows} == {id(ticket.row) for ticket in tickets}


def compared(gpu: Gpu, rows: list[Row] | None = None) -> tuple[Session, Ticket, Ticket]:
    session = a_session(gpu, (rows if rows is not None else []).append)
    ours, theirs = session.add(candidate("prefetch")), session.add(candidate("seed"))
    assert all(session.verify(ticket) for ticket in session.prepared())
    return session, ours, theirs


def test_a_comparison_is_of_samples_taken_in_turn() -> None:
    rows: list[Row] = []
    gpu = Gpu(ms=lambda of: 1.8 if of.name == "prefetch" else 2.0)
    session, ours, theirs = compared(gpu, rows)
    found = session.compare(ours, theirs, rounds=3)
    assert gpu.named("sample") == ["seed", "prefetch", "prefetch", "seed", "seed", "prefetch"]
    assert found.ratios == (0.9, 0.9, 0.9) and found.incumbent == theirs.candidate.label
    assert [row.name for row in rows] == ["prefetch"] and rows[0].against == found and not theirs.done
    assert rows[0].median_ms == 1.8 and rows[0].matmul_tflops is None and "3 rounds" in rows[0].method
    assert parse_line(Row, rows[0].to_json().encode(), "here") == rows[0]


def test_a_finalist_is_compared_again_and_has_another_row() -> None:
    rows: list[Row] = []
    session, ours, theirs = compared(Gpu(), rows)
    session.compare(ours, theirs, rounds=1)
    session.compare(ours, theirs, rounds=7)
    session.time([ours, theirs])
    assert [(row.name, len(row.against.ratios) if row.against else 0) for row in rows] == [
        ("prefetch", 1),
        ("prefetch", 7),
        ("prefetch", 0),
        ("seed", 0),
    ]


def test_who_breaks_the_worker_in_a_comparison_is_told_apart() -> None:
    gone = CallFailed("crashed", "gone")
    session, ours, theirs = compared(Gpu({("sample", "prefetch"): gone}))
    assert session.compare(ours, theirs) is None
    assert (ours.row.status, ours.row.reason, theirs.row.status) == ("crashed", "timing: gone", "ok")
    session, ours, theirs = compared(Gpu({("load", "seed"): gone}))
    with pytest.raises(CallFailed, match=r"the incumbent, seed float16, could not be timed: gone"):
        session.compare(ours, theirs)
    assert not ours.done


def test_what_cannot_be_compared_or_timed_is_told() -> None:
    gpu = Gpu({("verify", "prefetch"): (GOOD, False)})
    with a_session(gpu) as session:
        seed, prefetch = session.add(candidate()), session.add(candidate("prefetch"))
        again, longer = session.add(candidate()), session.add(replace(candidate(), shape=replace(SHAPE, seq_kv=512)))
        for ticket in session.prepared():
            session.verify(ticket)
        for one, other, words in (
            (seed, again, "expected two candidates of one problem"),
            (seed, longer, "expected two candidates of one problem"),
            (prefetch, seed, "prefetch float16 is not verified"),
            (seed, prefetch, "prefetch float16 is not verified"),
        ):
            with pytest.raises(ValueError, match=words):
                session.compare(one, other)
        session.end_compiling()
        session.add(Candidate("cudnn", SHAPE))
        with pytest.raises(ValueError, match="expected only peers"):
            session.add(candidate())
    assert gpu.named("sample") == []


def test_what_was_measured_is_found_by_its_code_and_not_measured_again() -> None:
    rows: list[Row] = []
    gpu, known = Gpu({("verify", "wrong"): (ErrorReport(1.0, 1.0, 2e-4, 2e-4, True), True)}), Known()
    with a_session(gpu, rows.append, known=known) as session:
        # All of one tile: the stand-in's compilers give them the same code; `wrong` has another.
        session.add(candidate("seed"))
        for ticket in session.prepared():
            if not ticket.done and session.verify(ticket):
                session.time([ticket])
            if ticket.candidate.name == "seed":
                session.add(candidate("source_order"))
                session.add(Candidate("wrong", SHAPE, Planned(shipped()["seed"]), fixed=True))
                session.add(Candidate("wrong2", SHAPE, Planned(shipped()["source_order"]), fixed=True))
    seed, again, wrong, wrong2 = rows
    assert {name for _, name in gpu.calls} == {"seed", "wrong", MATMUL}
    assert again == replace(seed, name="source_order", label=again.label, known_from=seed.run)
    assert (wrong.status, wrong.known_from) == ("wrong", None)
    assert (wrong2.status, wrong2.reason, wrong2.known_from) == ("wrong", wrong.reason, seed.run)


def test_an_earlier_runs_rows_are_known_and_without_being_asked_for_nothing_is() -> None:
    rows: list[Row] = []
    with a_session(record=rows.append) as session:
        session.add(candidate())
        for ticket in session.prepared():
            assert session.verify(ticket)
            session.time([ticket])
    read = [replace(parse_line(Row, row.to_json().encode(), "here"), run="earlier") for row in rows]
    for known, measured in ((Known(read), 0), (None, 1), (Known(replace(row, driver="581") for row in read), 1)):
        gpu = Gpu()
        with a_session(gpu, known=known) as session:
            session.add(candidate("prefetch"))
            for ticket in session.prepared():
                assert ticket.done == (not measured)
                assert ticket.row.known_from == (None if measured else "earlier")
                if measured:
                    session.verify(ticket)
        assert bool(gpu.calls) == bool(measured)


def climb(session: Session, start: Candidate, tries: int, rng: random.Random) -> Ticket | None:
    """Searches in a few lines: it tries neighbours of the best so far, four at a time, and the faster one of two stays."""
    best, names = None, iter(range(tries))
    session.add(start)
    for ticket in session.prepared():
        if not ticket.done and session.verify(ticket):
            if best is None:
                session.time([ticket])
                best = ticket
            elif (comparison := session.compare(ticket, best)) and comparison.is_faster:
                best = ticket
        while best and session.outstanding < 4 and (number := next(names, None)) is not None:
            schedule = random_neighbour(best.candidate.schedule, rng, lambda name: name in ("block_N", "num_stages"))
            session.add(Candidate(f"try {number}", start.shape, Planned(schedule)))
    return best


def test_a_hill_climb_finds_the_top_of_its_field_and_measures_no_code_twice() -> None:
    """In this field a kernel is fastest with 96 keys a block, whatever its buffers; every other sample is 5 % slower."""
    rng, slower, rows = random.Random(0), cycle((1.0, 1.05)), []

    def ms(of: Candidate) -> float:
        slope = 0.0 if of.schedule is None else abs(of.schedule.block_N - 96) / 100
        return (1.0 + slope) * next(slower)

    gpu = Gpu(ms=ms)
    code = Compilers(code=lambda of: f"block_N {of.schedule.block_N}")
    with a_session(gpu, rows.append, known=Known(), compilers=code) as session:
        best = climb(session, candidate("source_order"), 60, rng)
    assert best.candidate.schedule.block_N == 96 and len(rows) == 61
    assert {row.status for row in rows} == {"ok", "refused"}, "blocks and buffers that do not fit are refused"
    measured = [row.fingerprint for row in rows if row.status == "ok" and not row.known_from]
    assert len(measured) == len(set(measured)) < sum(row.status == "ok" for row in rows)
    against = {row.against.incumbent for row in rows if row.against}
    assert len(against) > 1, "the incumbent changes as the search goes on"


def test_a_climb_from_what_is_refused_ends() -> None:
    with a_session() as session:
        assert climb(session, candidate("seed_stages4"), 10, random.Random(0)) is None


def of(*ratios: float) -> Comparison:
    return Comparison("seed", "f757c4ee1c97", ratios)


def test_ratios_are_those_of_each_round() -> None:
    found = Comparison.of("seed", None, [1.0, 2.2, 0.9], [1.0, 2.0, 1.0])
    assert found.ratios == pytest.approx((1.0, 1.1, 0.9)) and found.ratio == 1.0


# The ranks are those of tables of the sign test, two-sided at 5 %.
@pytest.mark.parametrize("rounds, skipped", [(6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (25, 7)])
def test_the_interval_leaves_out_as_many_as_the_sign_test_allows(rounds, skipped) -> None:
    ratios = [1 + number / 1000 for number in range(rounds)]
    random.Random(0).shuffle(ratios)
    assert of(*ratios).interval == (1 + skipped / 1000, 1 + (rounds - 1 - skipped) / 1000)


@pytest.mark.parametrize("rounds", range(1, 6))
def test_few_rounds_tell_nothing(rounds) -> None:
    assert of(*[0.5] * rounds).interval is None and not of(*[0.5] * rounds).is_faster


def test_faster_is_what_all_of_the_interval_says() -> None:
    assert of(*[0.99] * 6).is_faster and not of(*[1.0] * 6).is_faster
    # 15 rounds, whose fourth largest counts.
    assert of(*[0.99] * 12, 1.01, 1.01, 1.01).is_faster
    assert not of(*[0.99] * 11, *[1.01] * 4).is_faster


@pytest.mark.parametrize("rounds", [6, 7, 15])
def test_the_median_lies_in_the_interval_as_often_as_it_says(rounds) -> None:
    rng = random.Random(rounds)
    draws = [[rng.lognormvariate(0, 0.1) for _ in range(rounds)] for _ in range(4000)]
    inside = [low <= 1.0 <= high for low, high in (of(*draw).interval for draw in draws)]
    assert CONFIDENCE - 0.01 <= statistics.mean(inside) <= 0.995


@pytest.mark.gpu
@pytest.mark.alone
def test_the_same_code_entered_twice_compares_as_equal() -> None:
    shape = AttentionShape(2, 16, 8192, 8192, 128, "bfloat16")
    with Session(lambda row: None) as session:
        for name in ("best", "best again", "seed"):
            session.add(Candidate(name, shape, Planned(shipped()[name.partition(" ")[0]])))
        tickets = {ticket.candidate.name: ticket for ticket in session.prepared() if session.verify(ticket)}
        again = session.compare(tickets["best again"], tickets["best"])
        slower = session.compare(tickets["seed"], tickets["best"])
    assert abs(again.ratio - 1) < 0.005 and again.fingerprint == tickets["best again"].row.fingerprint
    assert slower.interval[0] > 1.2 and not slower.is_faster
