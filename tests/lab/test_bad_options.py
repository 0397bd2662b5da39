"""Bad options, outputs and machines give one line on stderr and exit code 2: no traceback, and nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, python

from tl_attention.lab.measure.device import VisibleGpu


def test_no_command_shows_the_help_and_fails(cli) -> None:
    result = cli()
    assert result.exit_code == 2 and not result.stdout and "Look at schedules:" in result.stderr


@pytest.mark.parametrize(
    "words, ending",
    [
        ("run seed", "jsonl"),
        ("bench seed", "jsonl"),
        *(("trace best", end) for end in ("json", "chrome.json", "html", "svg")),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_anything_starts(words, ending, error_of, tmp_path):
    """It is told before the GPU that is not here."""
    (tmp_path / "file").write_text("")
    folder = tmp_path / f"folder.{ending}"
    folder.mkdir()
    for path, reason in (
        (folder, "Is a directory"),
        (tmp_path / "file" / f"some.{ending}", "Not a directory"),
        (Path(f"/proc/none/some.{ending}"), "No such file or directory"),
    ):
        assert error_of(*words.split(), "--output", path) == f"{path}: cannot be written: {reason}"


def test_run_on_a_gpu_that_is_no_known_card_ends_in_one_line_and_leaves_no_empty_file(
    cli, seed_path, tmp_path, monkeypatch
) -> None:
    from tl_attention.lab.measure import machine, session

    monkeypatch.setattr(machine, "visible_gpus", lambda: (VisibleGpu("GPU-0", "V100", (7, 0)),))
    monkeypatch.setattr(machine, "software", lambda: {"cuda": "13.0"})
    monkeypatch.setattr(session, "compile_each", lambda *of: pytest.fail("compiled for a GPU that cannot run it"))
    result = cli("run", seed_path, "--output", tmp_path / "rows.jsonl")
    assert result.exit_code == 2 and not result.stdout and list(tmp_path.iterdir()) == []
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "V100 has compute capability 7.0, expected one of 8.0 (A100), 8.6" in errors[0]


@pytest.mark.parametrize(
    "arguments, words",
    [(["check", "object.yaml"], "tags are not allowed"), (["verify"], "no command 'verify'")],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_in_a_process_of_its_own_bad_input_leaves_one_line_and_exit_code_2(arguments, words, tmp_path) -> None:
    (tmp_path / "object.yaml").write_text(f"block_M: !!python/object/apply:os.mkdir [{tmp_path}/made]\n")
    done = python("-m", "tl_attention", *arguments, cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and words in done.stderr
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("target, code", [("/dev/full", 2), ("pipe", 1)])
def test_a_standard_output_that_cannot_be_written_leaves_no_traceback(target, code, seed_path) -> None:
    if target == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(target, os.O_WRONLY)
    done = subprocess.run(
        [sys.executable, "-m", "tl_attention", "explain", str(seed_path)],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
        cwd=ROOT,
    )
    os.close(writing)
    assert done.returncode == code and done.stderr.count("\n") <= 1 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--ladder"],
        ["report", "--ladder", "worklog"],
        ["predict", "best", "--machine"],
        ["check"],
        ["run"],
        ["compare"],
        ["report"],
        ["trace", "--of"],
        ["submit"],
        ["submit", "--check"],
        ["submit", "--evaluate", f"{ROOT}/leaderboard_submit.py", "--lines"],
        ["bench", "seed", "--output"],
    ],
    ids=lambda words: " ".join(map(os.path.basename, words)),
)
def test_a_name_that_no_file_can_have_is_one_line(words, error_of) -> None:
    for name in ("x" * 300, "a\0b", "\ud800"):
        assert len(error_of(*words, name)) < 500
