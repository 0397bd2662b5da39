"""`search` says in a line what it cannot do, and writes its page whatever ends it. Stand-ins search."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import search_jobs
from conftest import ROOT
from search_jobs import SHAPE, in_a_folder
from stand_in import on_a_machine
from tiers import exhaustive

from tl_attention.lab.files.kinds import PAGE
from tl_attention.lab.search import search as search_module
from tl_attention.lab.search.outcome import Outcome
from tl_attention.lab.search.space import DEFAULT
from tl_attention.schedule.files.named import resolve

__all__ = ["on_a_machine"]
COMMAND = import_module("tl_attention.lab.cli.search")
TIMELINES = COMMAND._timelines
HERE = ("search", "--shape", "1,2,256,128", "--study", "some")


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch, on_a_machine) -> Path:
    """Has commands run in an empty folder without a GPU, and returns the folder of what they write."""
    in_a_folder(tmp_path, monkeypatch)
    return tmp_path / "runs"


def told_of(page: Path) -> dict:
    data = re.search(r' id="search">(.*?)</script>', page.read_text())
    assert data
    return json.loads(data[1])


def test_an_unknown_key_of_a_space_is_told_with_its_place(error_of, tmp_path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(DEFAULT.read_text().replace("\nblock_N:", "\nblok_N:"))
    line = space.read_text().partition("blok_N")[0].count("\n") + 1
    assert error_of(*HERE, "--space", space).startswith(f"{space}:{line}: blok_N: unknown key, did you mean block_N")


@pytest.mark.parametrize(
    "schedule, words",
    [
        ("seed_stages4", "needs 294,912 bytes of shared memory"),
        (ROOT / "schedules/inferred.yaml", "no point of the space: "),
        ("mma_sync", "no point of the space: "),
        ("besst", "did you mean best"),
    ],
)
def test_a_schedule_that_cannot_be_queued_is_told(schedule, words, error_of, runs) -> None:
    assert words in error_of(*HERE, "--from", schedule) and not [*runs.glob("*.db")]


def test_without_optuna_the_extra_is_named(error_of, monkeypatch, runs) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    expected = 'search: Optuna is missing, expected what `pip install "tl-attention[search]"` has'
    assert error_of(*HERE) == expected and not runs.exists()


@pytest.mark.parametrize("name", ["", "a/b", "../up", "-x", "a b", "a\nb"])
def test_a_study_with_a_name_that_no_file_has_is_refused(name, error_of, runs) -> None:
    said = error_of("search", "--shape", "1,2,256,128", f"--study={name}")
    assert said.startswith(f"--study: {name!r}, expected letters") and not runs.exists()


def test_without_a_gpu_it_ranks_by_prediction_and_goes_on_and_reports(cli, monkeypatch, runs) -> None:
    monkeypatch.setattr(search_module, "Compilers", search_jobs.InTurn)
    monkeypatch.setattr(search_module.Search.__init__, "__defaults__", (search_jobs.bred,))
    result = cli(*HERE, "--minutes", "0.1", "--from", "best", "--from", "ws_source_order")
    assert result.exit_code == 0, result.stderr
    assert "no GPU: schedules are proposed, checked, compiled and ranked by prediction" in result.stderr
    assert result.stdout == "runs/some.yaml\n" and "runs/some.html tells of it" in result.stderr
    found = told_of(runs / "some.html")
    assert not found["measured"] and found["problem"] == f"{SHAPE}" and len(found["raced"]) >= 2
    assert (found["winner"]["file"], found["winner"]["timelines"]) == ("some.yaml", None)
    assert resolve("runs/some.yaml").schedule
    assert {*os.listdir(runs)} >= {"some.html", "some.yaml", "search.db"} and not (runs / "some.jsonl").exists()
    (runs / "some.html").unlink()
    monkeypatch.setattr(search_module.Search, "run", lambda *of: pytest.fail("searched"))
    report = cli(*HERE, "--report")
    assert report.exit_code == 0 and report.stdout == "runs/some.yaml\n"
    assert told_of(runs / "some.html") == found


def test_a_study_that_is_not_there_or_of_another_problem_is_told(error_of, runs) -> None:
    assert error_of(*HERE, "--report").startswith("--study: there is no study some in sqlite:///runs/search.db")
    search_jobs.opened(runs)
    said = error_of("search", "--shape", "1,2,512,128", "--study", "some", "--report")
    assert said.startswith("--study: study some in sqlite:///runs/search.db is of the problem ") and "512" in said


def test_an_interrupted_search_leaves_its_study_and_its_page(runs, tmp_path) -> None:
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/lab")))
    script = "import search_jobs; search_jobs.command()"
    command = [sys.executable, "-c", script, *HERE, "--minutes", "9", "--from", "best", "--from", "ws_source_order"]
    environment = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "told\n"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert (
        "Traceback" not in errors
        and "Warning" not in errors
        and errors.endswith("interrupted; rows already recorded are kept\n")
    )
    assert told_of(runs / "some.html")["raced"] and (runs / "search.db").exists()
    assert output.splitlines()[-1] == "runs/some.yaml"


@exhaustive
def test_the_winners_timeline_is_drawn_above_the_nearest_ones(tmp_path) -> None:
    study = search_jobs.opened(tmp_path)
    result = search_jobs.told(study, search_jobs.points()[0], verdict="first", ratios=[])
    assert TIMELINES(Outcome(study, SHAPE, "no GPU", []), result, tmp_path / "some.html") == "some.html"
    text = (tmp_path / "some.html").read_text()
    assert PAGE.begins.match(text.encode()) and "trial 0" in text and "best" in text
