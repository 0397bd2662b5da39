"""Workers share a study on a real PostgreSQL: what is killed or late loses nothing, and nothing is timed twice."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import search_workers
from postgres import PASSWORD, Server, server
from search_jobs import SHAPE, InTurn, in_a_folder, many, parameters, points, proposals, told, url_of
from search_workers import opened, searched
from sqlalchemy import event, func, select
from stand_in import on_a_machine
from tiers import exhaustive

from tl_attention.errors import InputError
from tl_attention.lab.search import leases
from tl_attention.lab.search import search as search_module
from tl_attention.lab.search.leases import LEFT, LOST, ON
from tl_attention.lab.search.search import ADOPTED, FIRST, Search
from tl_attention.lab.search.storage import CLAIMS, ENTRIES, WORKERS
from tl_attention.lab.search.study import DRAWN, QUEUED, Study, point_key
from tl_attention.lab.search.timers import ByPrediction

__all__ = ["on_a_machine"]
# The storage's calls for a candidate: statements, and the begin and end of each transaction.
MOST_CALLS = 30
KILLS = 20


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    search_workers.quick(0.01, monkeypatch.setattr)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request, tmp_path) -> str:
    """Returns the URL of an empty database of each kind."""
    if request.param == "sqlite":
        return url_of(tmp_path)
    running = request.getfixturevalue("postgres")
    return fresh(running, request.node.name.partition("[")[0][-50:])


def fresh(running: Server, name: str) -> str:
    """Returns the URL of a new database of a server."""
    import psycopg

    with psycopg.connect(running.url, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    return running.url.removesuffix("postgres") + name


def lapse(study: Study) -> None:
    """Has a worker beat until what nobody else renews has lapsed."""
    for _ in range(leases.LEASE + 1):
        study.leases.beat({})


def test_what_a_worker_holds_another_one_does_not_get(url) -> None:
    one, other, (point, *_) = opened(url), opened(url), points()
    assert (one.number, other.number) == (0, 1)
    assert one.claim("code a", point, DRAWN) and not other.claim("code a", point, DRAWN)
    assert one.claim("code a"), "it holds it still"
    assert one.tell(point, DRAWN, ["code a"], reason="spills") and not other.claim("code a") and not one.claim("code a")
    assert other.tell(point, DRAWN, reason="spills") is None and len(other.results) == 1, "it is told once"


def test_what_a_lost_worker_holds_is_queued_again_and_its_late_word_does_not_count(url) -> None:
    lost, other, (first, second, *_) = opened(url), opened(url), points()
    keys = [lost.claim(f"code {name}", point, QUEUED) for name, point in zip("ab", (first, second))]
    assert lost.claim(FIRST)
    for _ in range(leases.LEASE - 1):
        other.leases.beat({})
    assert not [*other.orphaned()], "not before it has lapsed"
    lapse(other)
    found = [*other.orphaned()]
    assert sorted(found, key=str) == sorted([(QUEUED, first, "code a"), (QUEUED, second, "code b")], key=str)
    assert other.claim(FIRST)
    assert [(one.state, one.lapses) for one in other.workers()] == [(LOST, 1), (ON, 0)]
    lost.leases.beat({})
    assert lost.tell(first, QUEUED, keys[:1], reason="spills") is None and not [*lost.orphaned()]
    told_ = other.tell(first, QUEUED, keys[:1], reason="spills")
    assert told_ and told_.worker == 1 and [one.state for one in other.workers()] == [ON, ON]


def test_a_worker_that_was_only_late_keeps_what_nobody_has_taken(url) -> None:
    late, other, (point, *_) = opened(url), opened(url), points()
    key = late.claim("code a", point, DRAWN)
    lapse(other)
    late.leases.beat({})
    assert late.tell(point, DRAWN, [key], reason="spills") and not [*other.orphaned()]


def test_what_another_worker_found_to_be_the_best_becomes_the_incumbent(url) -> None:
    one, other, (first, second, *_) = opened(url), opened(url), points()
    search = Search(one, SHAPE, ByPrediction(), proposals(one), search_workers.bred)
    told(other, first, keys=[other.claim(FIRST)], verdict="first", ratios=[])
    compilers = InTurn(search_workers.bred, 1)
    assert not search.incumbent and not search._may_race, "who told it had claimed that"
    search._beat(compilers)
    (brood, bred), *_ = compilers.take(0)
    assert (brood.source, brood.given) == (ADOPTED, first)
    search._adopt(bred)
    assert search.incumbent and search.incumbent.result == other.results[0]
    told(other, second, verdict="slower", value=-0.1)
    search._beat(compilers)
    assert not compilers.waiting, "it is no better"


def test_of_workers_that_leave_one_is_the_last(url) -> None:
    first, second, third = opened(url), opened(url), opened(url)
    assert not first.leases.leave({}) and not second.leases.leave({})
    assert third.leases.leave({}) and not second.leases.outlasts()
    killed, left = opened(url), opened(url)
    assert not left.leases.leave({}) and left.leases.outlasts() and killed.number == 3
    assert [one.state for one in left.workers()] == [LEFT] * 3 + [LOST, LEFT]


def test_workers_with_one_name_seed_and_schedules_do_each_a_part(url, tmp_path) -> None:
    one, other = opened(url), opened(url)
    searched(one, tmp_path, 1, 0.5, 0.0)
    searched(other, tmp_path, 1, 0.5, 0.0)
    for _ in range(30):
        if is_open(other) or other.results[-1].worker == 0:
            searched(other := opened(url), tmp_path, 1, 0.5, 0.0)
    other.refresh(), one.refresh()
    assert one.results == other.results and len({result.worker for result in one.results}) > 1
    held(one, tmp_path, set())
    queued = [result for result in one.results if result.source == QUEUED]
    assert len(queued) == 8 and {worker.name for worker in one.workers()} == {search_workers.NAME}


def test_the_storage_is_called_a_few_times_for_a_candidate(url, tmp_path) -> None:
    study, calls, (first, second, *_) = opened(url), Counter[str](), points()
    # psycopg begins with a statement of its own.
    for what in ("before_cursor_execute", "begin", "commit", "rollback"):
        event.listen(study._storage.engine, what, lambda *of, what=what, **more: calls.update([what]))
    keys = [study.claim(point_key(first), first, QUEUED), study.claim("code a", first), study.claim(FIRST)]
    told(study, first, keys=keys)
    assert calls.total() <= MOST_CALLS, "the first one, which a person queued"
    calls.clear()
    told(study, second, keys=[study.claim("code b", second)])
    # A race takes about as long as the worker does nothing else but beat once.
    study.leases.beat({})
    study.refresh()
    assert calls.total() <= MOST_CALLS, "any other one"
    calls.clear()
    searched(study, tmp_path, 1, 1.0, 0.0)
    most = 18 * len(study.results) + 9 * (1.0 / leases.BEAT_S)
    assert len(study.timed) > 5 and calls.total() <= most, "in a search, which beats often here"


def is_open(study: Study) -> list[str]:
    """Returns the keys of what is held and is to be done."""
    asked = select(CLAIMS.c.key).where(~CLAIMS.c.ended, CLAIMS.c.work.is_not(None))
    return [*study._storage.do(lambda connection: connection.execute(asked).scalars().all())]


def held(study: Study, folder: Path, killed: set[int | None]) -> None:
    """Asserts that nothing was timed twice or is stuck; what a killed one was timing, another one may time."""
    timed = [result.machine_code for result in study.timed]
    assert len({*timed}) == len(timed)
    assert [result.number for result in study.results] == [*range(len(study.results))]
    assert [result.verdict for result in study.results].count("first") == 1
    begun = [line.split() for line in (folder / "timed").read_text().splitlines()]
    by_code: dict[str, list[int]] = {}
    for code, process in begun:
        by_code.setdefault(code, []).append(int(process))
    for code, processes in by_code.items():
        assert len([process for process in processes if process not in killed]) <= 1, code
    assert is_open(study) == []


@exhaustive
@pytest.mark.postgres
def test_twenty_kills_and_two_restarts_lose_nothing(tmp_path, monkeypatch) -> None:
    rng, killed, outputs, alive = random.Random(7), set[int | None](), list[Path](), list[int]()
    # A worker begins in a process that has imported all already.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["search_workers"])

    def started(running: Server) -> Any:
        outputs.append(tmp_path / f"told{len(outputs)}")
        outputs[-1].touch()
        worker = processes.Process(target=search_workers.main, args=(running.url, tmp_path, len(outputs) - 1))
        worker.daemon = True  # It ends with the test, however that ends.
        worker.start()
        alive.append(len(outputs) - 1)
        return worker

    def lines() -> list[bytes]:
        """Returns what all workers have told, but for what one was writing down when it was killed."""
        found = [line for path in outputs for line in path.read_bytes().splitlines(keepends=True)]
        return [line for line in found if line.endswith(b"\n")]

    def wait(goes_on: Callable[[], bool]) -> None:
        until = time.monotonic() + 60
        while goes_on():
            assert time.monotonic() < until, "nothing is told"
            time.sleep(0.05)

    with server() as running:
        workers = [started(running) for _ in range(4)]
        wait(lambda: not all(path.stat().st_size for path in outputs))
        for kill in range(KILLS):
            most = len(lines()) + rng.randrange(8)
            wait(lambda: len(lines()) < most)
            time.sleep(rng.uniform(0.0, 0.5))
            if kill in (6, 13):
                # Who begins while there is no server says so, and ends.
                wait(lambda: not all(outputs[one].stat().st_size for one in alive))
                running.stop("immediate" if kill == 6 else "fast")
                time.sleep(rng.uniform(0.0, 2.0))
                running.start()
            one = workers.pop(number := rng.randrange(len(workers)))
            alive.pop(number)
            assert one.is_alive(), [path.read_text()[-500:] for path in outputs]
            one.kill()
            one.join()
            killed.add(one.pid)
            if kill < KILLS - len(workers) - 1:
                workers.append(started(running))
        # It goes on elsewhere: whatever was held lapses first.
        monkeypatch.setattr(leases, "BEAT_S", 0.1)
        study = opened(running.url)
        before = len(study.results)
        searched(study, tmp_path, 2, 4.0)
        for _ in range(10):
            if is_open(study):
                study = opened(running.url)
                searched(study, tmp_path, 2, 2.0)
        kept = {result.number: result for result in study.results}
        told_ = [*map(json.loads, lines())]
        for line in told_:
            assert line == json.loads(json.dumps(vars(kept[line["number"]])))
        assert len(told_) > 3 * KILLS and before >= len(told_) and len(study.results) > before
        held(study, tmp_path, killed)
        assert {point_key(parameters().point(one)) for one in search_workers.QUEUED} <= {
            point_key(result.point) for result in study.results if result.source == QUEUED
        }
        assert PASSWORD not in "".join(path.read_text() for path in outputs)
        assert {worker.state for worker in study.workers()} == {LOST, LEFT}


@pytest.mark.postgres
def test_a_database_that_restarts_is_waited_for(postgres, monkeypatch) -> None:
    study = opened(fresh(postgres, "restarted"))
    told(study, points()[0])
    postgres.stop()
    postgres.start()
    assert told(study, points()[1]).number == 1 and len(opened(fresh_url(postgres)).results) == 2


def fresh_url(running: Server) -> str:
    return running.url.removesuffix("postgres") + "restarted"


@pytest.mark.postgres
@pytest.mark.parametrize(
    "change, words",
    [
        (("s3cret-0f-tests", "wr0ng"), "password authentication failed for user"),
        (("/postgres", "/nothing"), 'database "nothing" does not exist'),
        (("postgresql://", "postgresql+psycopg2://"), "postgresql+psycopg2:// is not known"),
        (("postgresql://", "mysql://"), "mysql:// is not known, expected sqlite:// or postgresql://"),
    ],
)
def test_a_server_that_cannot_be_used_is_one_line_without_a_password(change, words, postgres) -> None:
    with pytest.raises(InputError) as refused:
        opened(postgres.url.replace(*change))
    said = str(refused.value)
    assert said.startswith("--storage: ") and words in said and "\n" not in said
    assert PASSWORD not in said and "wr0ng" not in said


@pytest.mark.postgres
def test_a_refused_study_writes_nothing(postgres) -> None:
    url = fresh(postgres, "refused")
    told(opened(url), points()[0])
    import psycopg

    def counts() -> list[int]:
        with psycopg.connect(url) as connection:
            return [
                connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()[0]  # type: ignore[index]
                for table in (ENTRIES, WORKERS, CLAIMS)
            ]

    before = counts()
    for what in search_workers.OF:
        with pytest.raises(InputError, match=f"is of the {what} "):
            opened(url, **{what: "another"})
    assert counts() == before


@pytest.mark.postgres
def test_a_database_of_optunas_own_tables_is_refused(postgres) -> None:
    from optuna.storages import RDBStorage

    url = fresh(postgres, "optunas")
    RDBStorage(url.replace("postgresql://", "postgresql+psycopg://"))
    with pytest.raises(InputError, match=r"has the tables of Optuna's RDBStorage, expected a database without them$"):
        opened(url)


@pytest.fixture
def here(tmp_path, monkeypatch, on_a_machine) -> Path:
    """Has the command search with stand-ins and without a GPU, in an empty folder."""
    in_a_folder(tmp_path, monkeypatch, 1.0)
    monkeypatch.setattr(search_module.Search.__init__, "__defaults__", (search_workers.bred,))
    return tmp_path


@pytest.mark.postgres
def test_a_password_stands_in_nothing_that_is_told_or_written(cli, here, postgres) -> None:
    url = fresh(postgres, "secret")
    command = ("search", "--shape", "1,2,256,128", "--study", "some", "--storage")
    one, other, report = [
        cli(*command, given, "--minutes", "0.1", *more)
        for given, more in ((url, ()), (f"{url}?application_name=me", ()), (url, ("--report",)))
    ]
    for result in (one, other, report):
        assert result.exit_code == 0 and result.stdout == "runs/some.yaml\n", result.stderr
        assert PASSWORD not in result.stderr and "searcher:***@127.0.0.1" in result.stderr
    assert "2 workers took part" not in (text := (here / "runs/some.html").read_text()) and '"workers":[["0: ' in text
    written = [*(here / "runs").iterdir()]
    assert {path.name for path in written} == {"some.html", "some.yaml"}
    assert all(PASSWORD not in path.read_text() for path in written)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "arguments, change, words",
    [
        ((), (PASSWORD, "wr0ng"), "password authentication failed"),
        ((), ("/refused_by_the_command", "/nothing"), 'database "nothing" does not exist'),
        (("--shape", "1,2,512,128"), ("", ""), "is of the problem (1, 2, 256, 128)"),
        (("--report", "--study", "other"), ("", ""), "there is no study other in postgresql://searcher:***@"),
    ],
)
def test_what_cannot_be_joined_is_one_line_and_nothing_is_written(
    arguments, change, words, error_of, here, postgres
) -> None:
    url = fresh(postgres, "refused_by_the_command")
    study = opened(url, problem="(1, 2, 256, 128) float16")
    said = error_of(
        "search", "--shape", "1,2,256,128", "--study", "some", "--storage", url.replace(*change), *arguments
    )
    assert words in said and PASSWORD not in said and "wr0ng" not in said
    assert [*here.iterdir()] == [] and len(study.workers()) == 1 and study.refresh() == []


def test_a_study_that_many_told_is_read_in_the_order_of_its_log(url) -> None:
    writers = [opened(url) for _ in range(3)]
    for number, point in enumerate(many(30)):
        told(writers[number % 3], point)
    reader = Study(url, "some", search_workers.OF, parameters(), 1, worker=None)
    assert [result.worker for result in reader.results] == [0, 1, 2] * 10
    entries = select(func.count()).select_from(ENTRIES)
    assert reader._storage.do(lambda connection: connection.execute(entries).scalar()) == 31
