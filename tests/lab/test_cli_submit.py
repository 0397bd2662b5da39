"""`submit` packs a schedule, and with --evaluate runs submissions under the contract and records them."""

import importlib
import json
import re
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import FAR_S, HONEST, LINE
from submissions import COMMITTED, text
from tiers import exhaustive

from tl_attention.lab.cli.submit import BASELINES
from tl_attention.lab.leaderboard import evaluate as harness
from tl_attention.lab.leaderboard import submission
from tl_attention.lab.leaderboard.contract import FORBIDDEN_WORD, RANKED_LINES
from tl_attention.lab.leaderboard.evaluate import evaluate
from tl_attention.lab.leaderboard.results import Evaluation, LineResult, Outcome, summarize

# The package has a function of this name too.
command = importlib.import_module("tl_attention.lab.cli.submit")


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch) -> None:
    """Makes commands run in a folder with two submissions and tiny test lines."""
    monkeypatch.chdir(tmp_path)
    for name in ("sdpa.py", "other.py"):
        Path(name).write_text(HONEST)
    Path("lines.txt").write_text(f"{LINE}\n")
    Path("latin.txt").write_bytes(b"x\xe4")


@pytest.fixture
def named(monkeypatch) -> None:
    """Makes `submit` pack the schedule's name only."""
    monkeypatch.setattr(submission, "pack", lambda name, schedule: name)


@pytest.fixture
def fake(monkeypatch) -> SimpleNamespace:
    """Makes evaluations without running anything: times by the file's name, and what a test makes wrong."""
    times = {"sdpa.py": 4.0, "other.py": 2.0, "seed.py": 2.5, "baseline_cudnn.py": 3.0, "cudnn.py": 6.0}
    run = SimpleNamespace(status="pass", tight=True, calls=[])

    def evaluate(name: str, source: bytes, lines: Any, mode: str, device: str) -> Evaluation:
        run.calls.append((name, source.decode(), tuple(lines), mode, device))
        timing = None if mode == "test" else summarize([times[name]] * 3, 1.0, method="fake")
        outcome = Outcome(run.status, "", 1.0)
        rows = tuple(LineResult(line, outcome, run.status == "pass", run.tight, timing=timing) for line in lines)
        return Evaluation(name, "", mode, device, {"device_name": "H100"}, Outcome("pass", "", 1.0), rows)

    monkeypatch.setattr(harness, "evaluate", evaluate)
    monkeypatch.setattr(command, "visible_gpus", lambda: ("a GPU",))
    return run


@exhaustive
def test_submit_packs_a_schedule_and_says_path_and_size(cli, seed_path, monkeypatch) -> None:
    """The text is the same as in other tests: each process packs it by itself in test_submission.py."""
    monkeypatch.setattr(submission, "pack", lambda name, schedule: text(name))
    result = cli("submit", seed_path.with_name("best.yaml"))
    size = Path("leaderboard_submit.py").stat().st_size
    assert Path("leaderboard_submit.py").read_text(encoding="utf-8") == text("best")
    assert (result.exit_code, result.stdout) == (0, f"wrote leaderboard_submit.py, {size:,} bytes\n")


@pytest.mark.parametrize(
    "given, name", [("experiments/sections",) * 2, ("best", "best"), ("{seed}", "seed"), ("noext", "noext")]
)
def test_a_schedule_is_packed_under_its_name_and_no_control_character_is_printed(cli, seed_path, named, given, name):
    Path("noext").write_bytes(seed_path.read_bytes())
    result = cli("submit", given.format(seed=seed_path), "-o", "\x1b[31m.py")
    assert (result.exit_code, result.stdout) == (0, f"wrote \\x1b[31m.py, {len(name)} bytes\n"), result.stderr
    assert Path("\x1b[31m.py").read_text() == name


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["missing.yaml"], "missing.yaml: cannot be read: No such file"),
        (["sdpa.py", "--lines", "latin.txt"], "latin.txt:1: "),
    ],
)
def test_what_cannot_be_read_is_told_before_anything_is_evaluated(arguments, words, error_of, fake) -> None:
    assert words in error_of("submit", "--evaluate", *arguments)
    assert fake.calls == [] and not Path("runs").exists()


def test_without_a_gpu_it_says_that_it_needs_one(error_of, monkeypatch) -> None:
    monkeypatch.setattr(command, "visible_gpus", tuple)
    for file in ("sdpa.py", "best"):
        message = error_of("submit", "--evaluate", file)
        assert message == "--evaluate: no GPU here, expected one; --device cpu tries the harness only"
    assert not Path("runs").exists()


@pytest.mark.parametrize("file", ["best", "seed.yaml", "packed.py"])
def test_on_the_cpu_what_needs_a_gpu_is_told_at_once(file, error_of, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "pack", lambda *_: pytest.fail("it was packed first"))
    shutil.copy(seed_path, "seed.yaml")
    shutil.copy(COMMITTED, "packed.py")
    what = "a packed schedule" if file == "packed.py" else "a schedule"
    assert error_of("submit", "--evaluate", "sdpa.py", file, "--device", "cpu") == (
        f"{file}: {what}, whose kernel needs a GPU, expected with --device cpu a submission file of yours that computes on "
        "the CPU"
    )
    assert not Path("runs").exists()


def test_a_submission_and_a_baseline_that_cannot_run_here_are_evaluated_in_one_call(cli, monkeypatch) -> None:
    monkeypatch.setattr(harness, "evaluate", partial(evaluate, test_s=FAR_S, import_s=FAR_S))
    result = cli("submit", "--evaluate", "sdpa.py", "--device", "cpu", "--lines", "lines.txt", "--against", "cudnn")
    assert result.exit_code == 0, "the baseline's failure is its own"
    first, second = result.stdout.split("# cudnn")
    assert "benchmark.0: runs=" in first and "check: pass" in first
    assert "benchmark.0: status=error" in second and "check: fail" in second
    [path] = Path("runs").iterdir()
    recorded = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(entry["name"], entry["accepted"]) for entry in recorded] == [("sdpa", True), ("cudnn", False)]
    assert path.name.startswith("evaluate-") and recorded[0]["rows"][0]["timing"]["n"] >= 3
    report = cli("report", path)
    assert report.exit_code == 0 and "sdpa" in report.stdout


def test_the_table_has_the_speed_relative_to_the_baseline_whatever_a_file_is_called(cli, fake, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    Path("cudnn.py").write_text(HONEST)
    result = cli("submit", "--evaluate", "sdpa.py", "other.py", "cudnn.py", "--against", "cudnn")
    assert result.exit_code == 0
    assert [name for name, *_ in fake.calls] == ["sdpa.py", "other.py", "cudnn.py", "baseline_cudnn.py"]
    assert {tuple(rest) for _, _, *rest in fake.calls} == {(RANKED_LINES, "benchmark", "cuda")}
    table = result.stdout[result.stdout.rindex("----") :].splitlines()[1:-1]
    rows = [re.split(" {2,}", line.strip()) for line in table]
    assert [row[0] for row in rows] == ["sdpa", "other", "cudnn.py", "cudnn"] * 3
    assert rows[9][1:7] == ["(4, 64, 8192, 128)", "pass", "3", "2.0000", "2.0000", "2.0000"]
    assert [row[-2:] for row in rows[8:]] == [[ratio] * 2 for ratio in ("0.750", "1.500", "0.500", "1.000")]
    assert result.stdout.splitlines()[-1].startswith("4 evaluations in runs/evaluate-")


def test_a_schedule_is_packed_first_and_names_are_told_apart_and_printable(cli, fake, named, seed_path) -> None:
    Path("\x1b[32m").mkdir()
    Path("\x1b[32m/sdpa.py").write_text(HONEST)
    result = cli("submit", "--evaluate", seed_path, "\x1b[32m/sdpa.py", "sdpa.py", "-o", "\x1b[34m.jsonl")
    assert result.exit_code == 0 and "\x1b" not in result.stdout + result.stderr
    assert [call[:2] for call in fake.calls] == [("seed.py", "seed"), *[("sdpa.py", HONEST)] * 2]
    assert re.findall("^# .*", result.stdout, re.MULTILINE) == ["# seed", "# \\x1b[32m/sdpa.py", "# sdpa.py"]
    assert "in \\x1b[34m.jsonl" in result.stdout and not Path("leaderboard_submit.py").exists()


@pytest.mark.parametrize(
    "status, tight, code, words",
    [("pass", True, 0, "check: pass"), ("pass", False, 1, "pass, not tight"), ("wrong", False, 1, "check: fail")],
)
def test_one_that_misses_the_contract_fails_and_has_the_class_harness_lines(status, tight, code, words, cli, fake):
    fake.status, fake.tight = status, tight
    result = cli("submit", "--evaluate", "other.py", "other.py", "--lines", "lines.txt")
    assert result.exit_code == code and words in result.stdout
    assert result.stdout.startswith("benchmark.0: runs=3, ") and "\ncheck: " in result.stdout
    assert fake.calls == [("other.py", HONEST, (LINE,), "benchmark", "cuda")]


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_keeps_the_rules_and_names_no_module_of_this_package(name, cli) -> None:
    source = BASELINES[name].read_bytes()
    assert FORBIDDEN_WORD.encode() not in source.lower() and b"tl_attention" not in source
    assert f"[{name}]" in cli("submit", "--help").stdout


@pytest.mark.gpu
@pytest.mark.alone
@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_accepted_on_the_gpu(name) -> None:
    found = evaluate(name, BASELINES[name].read_bytes(), RANKED_LINES[:1])
    assert found.accepted and found.tight, found.rows
