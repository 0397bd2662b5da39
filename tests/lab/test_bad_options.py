"""Bad options, outputs and machines give one line on stderr and exit code 2: no traceback, and nothing left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, python

from tl_attention.lab.measure.device import VisibleGpu

OPTIONS = {
    "head_dim": (["--shape", "4,64,8192,100"], ["head_dim 100 is not supported", "a multiple of 8 up to 256"]),
    "shape of words": (["--shape", "big"], ["'big' is not a shape", "batch,heads,seq,head_dim"]),
    "shape with x": (["--shape", "4x64x8192x128"], ["is not a shape", "4,64,8192,128"]),
    "shape of three": (["--shape", "4,64,8192"], ["is not a shape"]),
    "shape of six": (["--shape", "1,1,1,1,1,64"], ["is not a shape"]),
    "empty shape": (["--shape", ""], ["'' is not a shape"]),
    "shape of zero": (["--shape", "0,64,8192,128"], ["batch is 0", "at least 1"]),
    "negative shape": (["--shape", "1,-64,8192,128"], ["heads is -64", "at least 1"]),
    "float in shape": (["--shape", "1,64,8192.0,128"], ["is not a shape"]),
    "5000 digits": (["--shape", f"{'9' * 5000},1,1,128"], ["is not a shape"]),
    "causal": (["--shape", "1,2,65,64,128", "--causal"], ["causal", "seq_q 65 and seq_kv 64", "no key"]),
    "softcap": (["--softcap", "-1"], ["shape: softcap is -1.0", "expected 0, which is off"]),
    "dtype": (["--dtype", "fp8"], ["--dtype", "'fp8' is not one of", "fp16"]),
    "a value of a switch": (["--causal", "true"], ["--causal takes no value, found 'true'"]),
    "seed": (["--seed", "-1"], ["--seed", "0<=x"]),
    "unknown option": (["--warmup", "3"], ["No such option", "--warmup", "--help"]),
    "option without value": (["--shape"], ["--shape", "requires an argument"]),
}


OF_BENCH = {
    "rounds": (["--rounds", "99999999999"], ["--rounds", "2<=x<=10000"]),
    "sizes": (["--sizes", "dynamic"], ["--sizes", "'runtime', 'fixed', 'both'"]),
    "a ladder and a schedule": (["--ladder", "fa4"], ["--ladder names the schedules", "no SCHEDULES beside it"]),
}


@pytest.mark.parametrize("name", OF_BENCH)
def test_a_bad_option_of_bench_is_told_before_anything_starts(name, error_of, seed_path) -> None:
    options, words = OF_BENCH[name]
    message = error_of("bench", seed_path, *options)
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize("name", OPTIONS)
def test_a_bad_option_is_told_before_anything_starts(name, error_of, seed_path) -> None:
    options, words = OPTIONS[name]
    message = error_of("run", seed_path, *options)
    assert [word for word in words if word not in message] == [], message


def test_check_tells_a_head_dim_that_no_kernel_has(error_of, seed_path) -> None:
    words = "head_dim 100 is not supported, expected a multiple of 8 up to 256"
    assert error_of("check", seed_path, "--head-dim", "100") == words
    assert "'x' is no head size, expected a multiple of 8" in error_of("check", seed_path, "--head-dim", "x")


def test_an_unknown_command_lists_the_commands(error_of) -> None:
    names = "bench, check, compare, diff, doctor, explain, list, predict, report, run, submit, trace, warm"
    assert error_of("verify") == f"no command 'verify', expected one of {names} (see --help)"


def test_a_command_that_is_misspelt_is_guessed(error_of) -> None:
    assert error_of("rum", "best") == "no command 'rum': did you mean run? (see --help)"
    assert "did you mean explain?" in error_of("explian", "best")


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
