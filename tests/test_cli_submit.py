"""`submit`: packs a schedule, and runs submissions under the leaderboard's contract."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tl_attention.cli.submit import BASELINES
from tl_attention.errors import InputError
from tl_attention.leaderboard import contract, submission
from tl_attention.leaderboard import evaluate as harness
from tl_attention.leaderboard.contract import RANKED_LINES, TestLine
from tl_attention.leaderboard.evaluate import evaluate
from tl_attention.leaderboard.results import Evaluation, LineResult, Outcome
from tl_attention.leaderboard.stop_rule import summarize

CLEAN = """\
#!POPCORN leaderboard flashattention
#!POPCORN gpu H100
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
def fake_evaluate(monkeypatch):
    """Evaluations without running: times by the file's stem, and what a test makes wrong."""
    times = {"sdpa": 4.0, "other": 2.0, "seed": 2.5, "baseline_cudnn": 3.0}
    calls: list[dict[str, Any]] = []

    def run(path: Path, lines, *, mode: str, device: str) -> Evaluation:
        calls.append({"name": path.stem, "lines": tuple(lines), "mode": mode, "device": device})
        timing = None if mode == "test" else summarize([times[path.stem]] * 3, stopped_by="100 runs", method="fake")
        rows = tuple(
            LineResult(line, Outcome(run.status, "", 1.0), **(run.verdict | {"timing": timing})) for line in lines
        )
        return Evaluation(
            path.name, "0" * 64, mode, device, {"device_name": "H100"}, run.violations, Outcome("pass", "", 1.0), rows
        )

    run.verdict = {"accepted": True, "tight": True, "max_abs_error": 1e-4}
    run.status, run.violations, run.calls = "pass", (), calls
    monkeypatch.setattr(harness, "evaluate", run)
    return run


def test_submit_packs_a_schedule_and_says_path_and_size(cli, files, seed_path) -> None:
    result = cli("submit", seed_path)
    size = Path("leaderboard_submit.py").stat().st_size
    assert (result.exit_code, result.stdout) == (0, f"wrote leaderboard_submit.py, {size:,} bytes, all\n")
    assert contract.violations(Path("leaderboard_submit.py").read_bytes()) == []


def test_a_schedule_file_without_suffix_is_packed(cli, files, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(name) and [])
    Path("noext").write_bytes(Path(seed_path).read_bytes())
    result = cli("submit", "noext", "-o", "mine.py")
    assert (result.exit_code, Path("mine.py").read_text()) == (0, "noext"), result.stderr


def test_no_control_character_of_a_name_reaches_the_terminal(cli, files, fake_evaluate, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(name) and [])
    wrote = cli("submit", seed_path, "-o", "\x1b[31m.py")
    assert wrote.stdout.startswith("wrote \\x1b[31m.py, ")
    for folder in ("\x1b[32m", "b"):
        Path(folder).mkdir()
        Path(folder, "sdpa.py").write_text(CLEAN)
    fake_evaluate.violations = ("line 1: \x1b[33m",)
    result = cli("submit", "--evaluate", "\x1b[32m/sdpa.py", "b/sdpa.py", "-o", "\x1b[34m.jsonl")
    assert result.exit_code == 1 and "\x1b" not in result.stdout + result.stderr
    for shown in ("# \\x1b[32m/sdpa.py\n", "# breaks a rule: line 1: \\x1b[33m\n", "in \\x1b[34m.jsonl"):
        assert shown in result.stdout


def test_submit_passes_its_form_and_its_output_on(cli, files, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(f"{embed}") and [])
    result = cli("submit", seed_path, "--embed", "cuda", "-o", "mine.py")
    assert result.exit_code == 0 and Path("mine.py").read_text() == "cuda"


def test_the_file_names_a_shipped_schedule_as_submit_takes_it(cli, files, seed_path, monkeypatch) -> None:
    # The first line that each form writes of itself.
    monkeypatch.setitem(
        submission.FORMS,
        "all",
        lambda schedule, name: (
            f"# Made by `tl-attention submit {submission._identity(schedule, name)['name']}`\n{CLEAN}"
        ),
    )
    for given, named in (("experiments/sections", "experiments/sections"), ("best", "best"), (seed_path, "seed")):
        assert cli("submit", given, "-o", "packed.py").exit_code == 0
        first = Path("packed.py").read_text().splitlines()[0]
        assert first == f"# Made by `tl-attention submit {named}`"


@pytest.mark.parametrize("name", ["", "a b", "a/", "/a", "a//b", "a\nb", "a`b"])
def test_a_name_that_is_no_part_of_a_comment_is_refused(name) -> None:
    with pytest.raises(InputError, match="^schedule name .*expected letters"):
        submission._identity(None, name)


def test_a_submission_that_would_break_a_rule_is_not_written_and_fails(error_of, files, seed_path, monkeypatch) -> None:
    monkeypatch.setitem(submission.FORMS, "all", lambda schedule, name: "# a stream\n" + CLEAN)
    message = error_of("submit", seed_path)
    assert f"{seed_path}: not written, the submission would break" in message and "'stream'" in message
    assert not Path("leaderboard_submit.py").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["sdpa.py"], "sdpa.py: expected a schedule's name or file; a submission file is run with --evaluate"),
        (["{seed}", "sdpa.py"], "2 schedules, expected one"),
        (["{seed}", "--lines", "lines.txt"], "--lines says how to evaluate: expected it with --evaluate"),
        (["{seed}", "--device", "cpu"], "--device says how to evaluate"),
        (["{seed}", "--embed", "ptx"], "'ptx' is not one of 'all', 'tilelang', 'cuda'"),
        (["{seed}", "--embed", "tilelang", "-o", "."], "cannot be written: Is a directory"),
        (["{seed}", "--embed", "tilelang", "-o", "none/x.py"], "none/x.py: cannot be written: No such file"),
        ([], "Missing argument 'FILES...'"),
        (
            ["--evaluate", "sdpa.py", "missing.py"],
            "missing.py: cannot be read, expected a submission file: No such file",
        ),
        (["--evaluate", "missing.yaml"], "missing.yaml: cannot be read: No such file"),
        (["--evaluate", "sdpa.py", "--lines", "none.txt"], "none.txt: cannot be read: No such file or directory"),
        (["--evaluate", "sdpa.py", "--lines", "latin.txt"], "latin.txt: not text: byte 1 is not UTF-8"),
        (["latin.txt"], "latin.txt:1: not a text file"),
        (["--evaluate", "sdpa.py", "--lines", "sdpa.py"], "sdpa.py:1: "),
        (["--evaluate", "sdpa.py", "--against", "fa3"], "'fa3' is not"),
        (["--evaluate", "sdpa.py", "-o", "."], "results cannot be written: Is a directory"),
    ],
)
def test_bad_input_of_submit_is_told_in_one_line(arguments, words, error_of, files, seed_path, fake_evaluate) -> None:
    assert words in error_of("submit", *(argument.format(seed=seed_path) for argument in arguments))
    assert fake_evaluate.calls == [] and not Path("runs").exists()


def test_evaluate_without_a_gpu_says_that_it_needs_one(error_of, files, monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    message = error_of("submit", "--evaluate", "sdpa.py")
    assert "torch sees no CUDA GPU, expected one" in message and "'cpu' tests the harness only" in message


def test_a_submission_and_a_baseline_that_cannot_run_here_are_evaluated_in_one_call(cli, files, monkeypatch) -> None:
    # The machine may be busy, and each start loads torch.
    monkeypatch.setattr(harness, "evaluate", partial(evaluate, timeout_s=600, import_timeout_s=600))
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


def test_the_table_sets_submissions_beside_each_other_with_the_speed_relative_to_the_baseline(
    cli, files, fake_evaluate, monkeypatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    result = cli("submit", "--evaluate", "sdpa.py", "other.py", "--against", "cudnn")
    assert result.exit_code == 0 and "also recorded" not in result.stdout
    assert [call["name"] for call in fake_evaluate.calls] == ["sdpa", "other", "baseline_cudnn"]
    assert {call["lines"] for call in fake_evaluate.calls} == {RANKED_LINES}
    assert {(call["mode"], call["device"]) for call in fake_evaluate.calls} == {("benchmark", "cuda")}
    table = result.stdout[result.stdout.rindex("----") :].splitlines()[1:-1]
    rows = [re.split(" {2,}", line) for line in table]
    assert [row[0] for row in rows] == ["sdpa", "other", "cudnn"] * 3
    assert rows[7][1:7] == ["(4, 64, 8192, 128)", "pass", "3", "2.0000", "2.0000", "2.0000"]
    assert [row[-2:] for row in rows[6:]] == [["0.750", "0.750"], ["1.500", "1.500"], ["1.000", "1.000"]]
    assert result.stdout.splitlines()[-1].startswith("3 evaluations in runs/evaluate-")


def test_one_submission_prints_the_class_harness_lines_alone(cli, files, fake_evaluate) -> None:
    lines = cli("submit", "--evaluate", "other.py", "--lines", "lines.txt").stdout.splitlines()
    assert lines[0].startswith("benchmark.0: runs=3, mean=2.0000 ms") and lines[1] == "check: pass"
    assert fake_evaluate.calls[0]["lines"] == (TestLine.parse(TINY.strip()),)


def test_the_popcorn_protocol_and_the_test_mode_are_taken(cli, files, fake_evaluate) -> None:
    result = cli("submit", "--evaluate", "other.py", "--lines", "lines.txt", "--protocol", "popcorn", "--mode", "test")
    assert result.stdout.splitlines()[:4] == [
        "test-count: 1",
        f"test.0.spec: {TINY.strip()}",
        "test.0.status: pass",
        "check: pass",
    ]


def test_a_schedule_is_packed_and_evaluated_under_its_name(cli, files, fake_evaluate, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(CLEAN) and [])
    result = cli("submit", "--evaluate", seed_path, "sdpa.py", "--lines", "lines.txt")
    assert result.exit_code == 0 and [call["name"] for call in fake_evaluate.calls] == ["seed", "sdpa"]
    assert "# seed\n" in result.stdout and not Path("leaderboard_submit.py").exists()


@pytest.mark.parametrize(
    "status, tight, violations, words",
    [
        ("wrong", False, (), "check: fail"),
        ("pass", False, (), "# accepted, but not within 1e-3"),
        ("pass", True, ("line 1: The word occurs.",), "# breaks a rule: line 1: The word occurs."),
    ],
)
def test_a_submission_that_misses_the_contract_or_breaks_a_rule_fails(
    status, tight, violations, words, cli, files, fake_evaluate
) -> None:
    fake_evaluate.status, fake_evaluate.violations = status, violations
    fake_evaluate.verdict = {"accepted": status == "pass", "tight": tight, "max_abs_error": 5e-3}
    result = cli("submit", "--evaluate", "other.py", "--lines", "lines.txt")
    assert result.exit_code == 1 and words in result.stdout


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_keeps_the_rules_and_names_no_module_of_this_package(name) -> None:
    source = BASELINES[name].read_bytes()
    assert contract.violations(source) == [] and b"tl_attention" not in source


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_accepted_on_the_gpu(name) -> None:
    found = evaluate(BASELINES[name], RANKED_LINES[:1])
    assert found.accepted and found.tight, found.rows
