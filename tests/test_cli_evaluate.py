"""`submit --evaluate`: runs submissions under the leaderboard's contract, records them and shows their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tl_attention.cli.evaluate import BASELINES
from tl_attention.cli.submit import BASELINES as OFFERED
from tl_attention.leaderboard import evaluate as harness
from tl_attention.leaderboard import submission
from tl_attention.leaderboard.contract import FORBIDDEN_WORD, RANKED_LINES, TestLine
from tl_attention.leaderboard.evaluate import judging
from tl_attention.leaderboard.results import Evaluation, LineResult, Outcome, summarize

CLEAN = """\
import torch


def custom_kernel(data):
    return torch.nn.functional.scaled_dot_product_attention(*data)
"""
TINY = "batch_size: 1; num_heads: 2; seq_len: 64; head_dim: 64; seed: 3\n"


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A folder with two submissions and tiny test lines; commands run there."""
    monkeypatch.chdir(tmp_path)
    for name in ("sdpa.py", "other.py"):
        Path(name).write_text(CLEAN)
    Path("lines.txt").write_text(TINY)
    Path("latin.txt").write_bytes(b"x\xe4")
    return tmp_path


@pytest.fixture
def fake(monkeypatch) -> SimpleNamespace:
    """Evaluations without running: times by the file's name, and what a test makes wrong."""
    times = {"sdpa.py": 4.0, "other.py": 2.0, "seed.py": 2.5, "baseline_cudnn.py": 3.0}
    run = SimpleNamespace(status="pass", tight=True, calls=[])

    @contextmanager
    def judging(mode: str, device: str) -> Iterator[SimpleNamespace]:
        def evaluate(name: str, source: bytes, lines: Any) -> Evaluation:
            run.calls.append({"name": name, "lines": tuple(lines), "mode": mode, "device": device})
            timing = None if mode == "test" else summarize([times[name]] * 3, 1.0, method="fake")
            outcome = Outcome(run.status, "", 1.0)
            rows = tuple(LineResult(line, outcome, run.status == "pass", run.tight, timing=timing) for line in lines)
            return Evaluation(name, "", mode, device, {"device_name": "H100"}, Outcome("pass", "", 1.0), rows)

        yield SimpleNamespace(evaluate=evaluate)

    monkeypatch.setattr(harness, "judging", judging)
    return run


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["sdpa.py", "missing.py"], "missing.py: cannot be read, expected a submission file: No such file"),
        (["missing.yaml"], "missing.yaml: cannot be read: No such file"),
        (["sdpa.py", "--lines", "none.txt"], "none.txt: cannot be read: No such file or directory"),
        (["sdpa.py", "--lines", "latin.txt"], "latin.txt:1: "),
        (["sdpa.py", "--lines", "sdpa.py"], "sdpa.py:1: "),
        (["sdpa.py", "--against", "fa3"], "'fa3' is not"),
        (["sdpa.py", "-o", "."], "results cannot be written: Is a directory"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments, words, error_of, files, fake) -> None:
    assert words in error_of("submit", "--evaluate", *arguments)
    assert fake.calls == [] and not Path("runs").exists()


def test_without_a_gpu_it_says_that_it_needs_one(error_of, files, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    message = error_of("submit", "--evaluate", "sdpa.py")
    assert "torch sees no CUDA GPU, expected one" in message and "'cpu' tests the harness only" in message
    assert list(Path("runs").iterdir()) == []


def test_a_submission_and_a_baseline_that_cannot_run_here_are_evaluated_in_one_call(cli, files, monkeypatch) -> None:
    # The machine may be busy, and each start loads torch.
    monkeypatch.setattr(harness, "judging", partial(judging, test_s=600, import_s=600))
    result = cli("submit", "--evaluate", "sdpa.py", "--device", "cpu", "--lines", "lines.txt", "--against", "cudnn")
    assert result.exit_code == 0, "the baseline's failure is its own"
    first, second = result.stdout.split("# cudnn")
    assert "benchmark.0: runs=" in first and "check: pass" in first
    assert "benchmark.0: status=error" in second and "check: fail" in second
    [path] = Path("runs").iterdir()
    assert path.name.startswith("evaluate-")
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(entry["name"], entry["accepted"]) for entry in recorded] == [("sdpa", True), ("cudnn", False)]
    assert recorded[0]["rows"][0]["timing"]["n"] >= 3
    report = cli("report", path)
    assert report.exit_code == 0 and "sdpa" in report.stdout


def test_the_table_sets_submissions_beside_each_other_with_the_speed_relative_to_the_baseline(
    cli, files, fake, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = cli("submit", "--evaluate", "sdpa.py", "other.py", "--against", "cudnn")
    assert result.exit_code == 0 and "also recorded" not in result.stdout
    assert [call["name"] for call in fake.calls] == ["sdpa.py", "other.py", "baseline_cudnn.py"]
    assert {call["lines"] for call in fake.calls} == {RANKED_LINES}
    assert {(call["mode"], call["device"]) for call in fake.calls} == {("benchmark", "cuda")}
    table = result.stdout[result.stdout.rindex("----") :].splitlines()[1:-1]
    rows = [re.split(" {2,}", line.strip()) for line in table]
    assert [row[0] for row in rows] == ["sdpa", "other", "cudnn"] * 3
    assert rows[7][1:7] == ["(4, 64, 8192, 128)", "pass", "3", "2.0000", "2.0000", "2.0000"]
    assert [row[-2:] for row in rows[6:]] == [["0.750", "0.750"], ["1.500", "1.500"], ["1.000", "1.000"]]
    assert result.stdout.splitlines()[-1].startswith("3 evaluations in runs/evaluate-")


def test_one_submission_prints_the_class_harness_lines_alone(cli, files, fake) -> None:
    lines = cli("submit", "--evaluate", "other.py", "other.py", "--lines", "lines.txt").stdout.splitlines()
    assert lines[0].startswith("benchmark.0: runs=3, mean=2.0000 ms") and lines[1] == "check: pass"
    assert [call["lines"] for call in fake.calls] == [(TestLine.parse(TINY),)]


def test_the_popcorn_protocol_and_the_test_mode_are_taken(cli, files, fake) -> None:
    result = cli("submit", "--evaluate", "other.py", "--lines", "lines.txt", "--protocol", "popcorn", "--mode", "test")
    told = ["test-count: 1", f"test.0.spec: {TINY.strip()}", "test.0.status: pass", "check: pass"]
    assert result.stdout.splitlines()[:4] == told


def test_a_schedule_is_packed_and_evaluated_under_its_name(cli, files, fake, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(CLEAN) and [])
    result = cli("submit", "--evaluate", seed_path, "sdpa.py", "--lines", "lines.txt")
    assert result.exit_code == 0 and [call["name"] for call in fake.calls] == ["seed.py", "sdpa.py"]
    assert "# seed\n" in result.stdout and not Path("leaderboard_submit.py").exists()


def test_names_are_told_apart_and_no_control_character_of_them_reaches_the_terminal(cli, files, fake) -> None:
    for folder in ("\x1b[32m", "b"):
        Path(folder).mkdir()
        Path(folder, "sdpa.py").write_text(CLEAN)
    result = cli("submit", "--evaluate", "\x1b[32m/sdpa.py", "b/sdpa.py", "-o", "\x1b[34m.jsonl")
    assert result.exit_code == 0 and "\x1b" not in result.stdout + result.stderr
    assert "# \\x1b[32m/sdpa.py\n" in result.stdout and "in \\x1b[34m.jsonl" in result.stdout


@pytest.mark.parametrize(
    "status, words", [("wrong", "check: fail"), ("void", "status=void"), ("pass", "# accepted, but not within 1e-3")]
)
def test_a_submission_that_misses_the_contract_fails(status, words, cli, files, fake) -> None:
    fake.status, fake.tight = status, False
    result = cli("submit", "--evaluate", "other.py", "--lines", "lines.txt", "--mode", "test")
    assert result.exit_code == 1 and words in result.stdout


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_keeps_the_rules_and_names_no_module_of_this_package(name) -> None:
    source = BASELINES[name].read_bytes()
    assert name in OFFERED and FORBIDDEN_WORD.encode() not in source.lower() and b"tl_attention" not in source


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_accepted_on_the_gpu(name) -> None:
    with judging() as judge:
        found = judge.evaluate(name, BASELINES[name].read_bytes(), RANKED_LINES[:1])
    assert found.accepted and found.tight, found.rows
