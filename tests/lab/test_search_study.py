"""A study loses nothing that a search told it, is of one problem, and says in a line why it cannot be used."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import search_jobs
from conftest import ROOT, python
from optuna.trial import TrialState
from search_jobs import opened, parameters, points, told, url_of
from sqlalchemy import create_engine, text
from tiers import sampled

from tl_attention.errors import InputError
from tl_attention.lab.search.proposals import REFUSED
from tl_attention.lab.search.search import Search
from tl_attention.lab.search.study import QUEUED, Study
from tl_attention.lab.search.timers import ByPrediction


def test_what_was_told_is_read_back_as_it_was(tmp_path) -> None:
    study, (first, second, third, fourth, *_) = opened(tmp_path), points()
    told(study, first, QUEUED, verdict="first", ratios=[], ms=2.5, registers=168, machine_code="abc")
    told(study, second, verdict="faster", value=0.25, ratios=[0.2, 0.3], predicted_ms=1.5, against=0)
    told(study, third, reason="spills")
    told(study, fourth, reason="wrong: 1.0", failed=True)
    study.note(final=["a row"])
    again = opened(tmp_path)
    assert again.results == study.results and [result.name for result in again.timed] == ["trial 1", "trial 0"]
    assert [result.point for result in again.results] == [first, second, third, fourth]
    states = [trial.state for trial in study._study.trials]
    assert states == [TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL]
    assert (again.noted("final", []), again.noted("other", 7)) == (["a row"], 7)


@pytest.mark.parametrize("what", [*search_jobs.OF])
def test_a_study_of_something_else_is_refused(what, tmp_path) -> None:
    there = search_jobs.OF[what]
    told(opened(tmp_path), points()[0])
    with pytest.raises(InputError) as refused:
        opened(tmp_path, **{what: "another"})
    where = f"study some in {url_of(tmp_path)}"
    assert str(refused.value) == f"--study: {where} is of the {what} {there}, expected another study for another"
    assert opened(tmp_path, "other", **{what: "another"}).results == []


@pytest.mark.parametrize(
    "url, words",
    [
        ("journal.log", "no URL of a database"),
        ("", "no URL of a database"),
        ("postgresql://me:secret@localhost:port/runs", "no URL of a database"),
        ("sqlite:///FOLDER/none/runs.db", "unable to open database file"),
        ("sqlite:///FOLDER", "unable to open database file"),
        ("sqlite:///FOLDER/runs.jsonl", "file is not a database"),
        ("sqlite:///FOLDER/runs.db?timeout=soon", "could not convert string to float"),
        ("postgresql://me:secret@localhost:1/runs", "me:***@localhost:1/runs cannot be used: "),
        ("postgresql://localhost:1/runs?user=me&password=secret", "localhost:1/runs cannot be used: "),
        ("postgresql://localhost:1/runs?passwd=secret", "localhost:1/runs cannot be used: "),
        ("magic://me:secret@localhost/runs", "magic:// is not known, expected sqlite:// or postgresql://"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line_without_a_password(url, words, tmp_path) -> None:
    (tmp_path / "runs.jsonl").write_text("no database\n" * 100)
    with pytest.raises(InputError) as refused:
        Study(url.replace("FOLDER", f"{tmp_path}"), "some", search_jobs.OF, parameters(), seed=1)
    said = str(refused.value)
    assert said.startswith("--storage: ") and words in said and "\n" not in said and "secret" not in said


def test_a_sqlite_database_is_written_ahead(tmp_path) -> None:
    opened(tmp_path)
    with create_engine(url_of(tmp_path)).connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"


def test_a_signal_inside_of_a_call_of_the_database_leaves_no_traceback(tmp_path) -> None:
    """pytest would catch what is logged, so this is a process of its own."""
    script = (
        "import sys, search_jobs; from sqlalchemy.engine.default import DefaultDialect; from pathlib import Path\n"
        "study = search_jobs.opened(Path(sys.argv[1]))\n"
        "DefaultDialect.do_rollback = lambda *of: sys.exit(130)\n"
        "study.note(a=1)"
    )
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/lab")))
    done = python("-c", script, f"{tmp_path}", PYTHONPATH=paths)
    assert (done.returncode, done.stderr) == (130, "")


def killed(folder: Path, rng: random.Random) -> list[str]:
    """Kills a search at a drawn moment, with all of its processes, and returns the lines that it had printed."""
    command = [sys.executable, search_jobs.__file__, str(folder), str(rng.randrange(99))]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/lab")))
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout
        found = [process.stdout.readline() for _ in range(rng.randrange(1, 6))]
        time.sleep(rng.random() / 2)
        os.killpg(process.pid, signal.SIGKILL)
        return [line for line in (*found, *process.stdout) if line.endswith("\n")]


@pytest.mark.parametrize("kills", sampled((2, 10), [2]))
def test_a_search_that_is_killed_loses_nothing_that_was_told(kills, tmp_path) -> None:
    rng = random.Random(kills)
    printed = [json.loads(line) for _ in range(kills) for line in killed(tmp_path, rng)]
    study = opened(tmp_path)
    kept = {result.number: result for result in study.results}
    assert len(printed) >= kills and len(kept) == len(study.results)
    for line in printed:
        assert line == json.loads(json.dumps(vars(kept[line["number"]])))
    # At most one was told and could not be printed.
    assert len({line["number"] for line in printed}) == len(printed) >= len(kept) - kills
    codes = [result.machine_code for result in study.timed]
    assert len({*codes}) == len(codes), "none was timed twice"
    legal = (result for result in study.results if not result.reason.startswith(REFUSED))
    schedules = [study.parameters.schedule(result.point) for result in legal]
    assert len({*schedules}) == len(schedules), "none was tried twice"
    search = Search(study, search_jobs.SHAPE, ByPrediction(), search_jobs.proposals(study))
    assert search.incumbent and search.incumbent.result.ms == min(result.ms for result in study.timed)
