"""Tests check what each command prints and leaves behind, and that light commands start without torch."""

import importlib
import tomllib

import pytest
from conftest import ROOT, python

import tl_attention
from tl_attention.lab.cli import main
from tl_attention.lab.measure.device import VisibleGpu
from tl_attention.lab.measure.records import read_rows
from tl_attention.problem.head_dims import is_meant
from tl_attention.schedule.files.schedule_file import load_file

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BLOCKED = "import sys; sys.modules.update(torch=None, tilelang=None, tvm=None, numpy=None); "
INFERRED = str(ROOT / "schedules" / "inferred.yaml")


@pytest.mark.parametrize(
    "command, words",
    [
        (["list", "--all"], "experiments/causal/rows"),
        (["check", "best", INFERRED], "proved safe"),
        (["explain", "schedules/seed.yaml"], "Steady state"),
        (["diff", "seed", "schedules/best.yaml", "--no-code"], "program: differs"),
        (["check", "--schema"], "json-schema.org"),
        (["explain", "--call", "--causal"], "best_causal"),
        (["explain", INFERRED], "the compiler decides"),
        (["report", "rows.jsonl"], "seed"),
        (["submit", "--help"], "--evaluate"),
        (["run", "--help"], "--shape"),
        (["warm", "--help"], "--strided"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_a_light_command_starts_without_torch_and_tilelang(command, words, tmp_path) -> None:
    (tmp_path / "schedules").symlink_to(ROOT / "schedules")
    (tmp_path / "rows.jsonl").write_text(
        '{"name": "seed", "label": "x", "sizes": "runtime", "status": "ok", "problem": {"batch": 1, "heads": 1, '
        '"seq_q": 1, "seq_kv": 1, "head_dim": 64, "dtype": "float16", "causal": false}}\n'
    )
    done = python("-c", f"{BLOCKED}from tl_attention.lab.cli import main; main({command!r})", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_the_console_script_and_python_m_are_the_same_program() -> None:
    module, _, name = PROJECT["scripts"]["tl-attention"].partition(":")
    assert getattr(importlib.import_module(module), name) is main
    assert importlib.import_module("tl_attention.__main__").main is main
    shown = python("-m", "tl_attention", "--help")
    assert shown.returncode == 0 and shown.stdout.startswith("Usage: tl-attention [OPTIONS]")


def test_the_version_is_that_of_the_project(cli) -> None:
    assert cli("--version").stdout.strip() == tl_attention.__version__


def test_check_says_what_is_proved_and_what_has_no_program(cli, seed_path) -> None:
    result = cli("check", seed_path, INFERRED, "--head-dim", 64)
    assert result.exit_code == 0 and not result.stderr
    assert result.stdout.splitlines() == [
        f"{seed_path}: proved safe at head_dim 64",
        f"{INFERRED}: fits; no Program to prove at head_dim 64",
    ]


def test_a_file_that_is_named_twice_is_looked_at_once(cli, seed_path) -> None:
    assert cli("check", seed_path, seed_path).stdout.count("proved safe") == 1


def test_explain_shows_the_phases_and_proves_them(cli, seed_path) -> None:
    result = cli("explain", seed_path)
    assert result.exit_code == 0 and result.stdout.startswith(
        "seed: first of the CS149 class leaderboard, in 2025\nlowering pipelined: "
    )
    for words in ("synchronous model", "Prologue", "Steady state", "Epilogue", "\nproved: every read"):
        assert words in result.stdout


def test_explain_proves_the_roles_too(cli, tmp_path) -> None:
    best = ROOT / "schedules/best.yaml"
    assert "the roles of a cluster neither race nor deadlock" in cli("explain", str(best)).stdout
    text = best.read_text()
    for before, after in {
        "ping_pong: true": "ping_pong: true\n  v_stages: 1",
        "wait_before:\n  mma1: exp.1\n": "",
        "[-1, 0, 2, 3, 4, -1, 1]": "[-1, 0, 1, 2, 3, -1, 4]",
        "[-1, 0, 0, 0, 0, -1, 1]": "[-1, 0, 0, 0, 0, -1, 0]",
    }.items():
        assert before in text
        text = text.replace(before, after)
    mine = tmp_path / "mine.yaml"
    mine.write_text(text)
    result = cli("explain", str(mine))
    assert result.exit_code == 2 and f"{mine}:21: refused: order: deadlock" in result.stderr


def test_explain_of_inferred_says_that_there_is_no_program(cli) -> None:
    result = cli("explain", INFERRED)
    assert result.exit_code == 0 and "There is no Program to prove or to show" in result.stdout
    assert "proved:" not in result.stdout


@pytest.fixture
def fake_runner(monkeypatch):
    """Makes rows without compiling: notes what `bench.measure` is given, and gives rows of the status a test wants."""
    from tl_attention.lab.measure import bench
    from tl_attention.lab.measure.records import Row, problem_of

    calls: list[tuple] = []

    def run(candidates, record, progress, **options):
        calls.append((candidates, options))
        rows = []
        for candidate in candidates:
            problem = problem_of(candidate.shape)
            sizes = "fixed" if candidate.fixed else "runtime"
            rows.append(Row(candidate.name, candidate.label, sizes, problem, run.status, reason="because"))
            record(rows[-1])
        return rows

    run.status, run.calls = "ok", calls
    monkeypatch.setattr(bench, "measure", run)
    return run


@pytest.mark.parametrize(
    "status, code",
    [
        ("ok", 0),
        ("checked_on_cpu", 0),
        ("compiled", 0),
        ("refused", 2),
        ("wrong", 1),
        ("unstable", 1),
        ("compile_error", 1),
        ("timeout", 1),
        ("crashed", 1),
        ("error", 1),
    ],
)
def test_the_exit_code_of_bench_says_what_became_of_its_rows(status, code, cli, fake_runner, tmp_path, seed_path):
    fake_runner.status = status
    output = tmp_path / "rows.jsonl"
    result = cli("bench", seed_path, "--output", output)
    assert result.exit_code == code
    assert f"{status}, 2 rows: because\n    seed (runtime float16, runtime bfloat16)\n" in result.stdout
    assert f"2 rows in {output}" in result.stdout
    assert [row.status for row in read_rows(output)] == [status, status]


def test_run_takes_one_dtype_and_bench_both_unless_told(cli, fake_runner, tmp_path, seed_path) -> None:
    output = ("--output", tmp_path / "rows.jsonl")
    for arguments in (("run", seed_path), ("bench", seed_path), ("bench", seed_path, "--dtype", "bf16")):
        assert cli(*arguments, *output).exit_code == 0
    dtypes = [[candidate.shape.dtype for candidate in candidates] for candidates, _ in fake_runner.calls]
    assert dtypes == [["float16"], ["float16", "bfloat16"], ["bfloat16"]]


def test_the_options_of_run_and_bench_reach_the_runner(cli, fake_runner, tmp_path, seed_path) -> None:
    options = ["--shape", "1,2,64,128,64", "--causal", "--dtype", "fp16", "--dtype", "float16"]
    for command in ("run --seed 3 --softcap 20 --sinks --lse", "bench --sizes both --rounds 7"):
        assert cli(*command.split(), seed_path, *options, "-o", tmp_path / "rows.jsonl").exit_code == 0
    (of_run, told), (of_bench, timed) = fake_runner.calls
    shape = "(1, 2, 64/128, 64) float16 causal"
    assert [(str(c.shape), c.fixed) for c in of_run] == [(f"{shape}, softcap 20, sinks, LSE", False)]
    assert [(str(c.shape), c.fixed) for c in of_bench] == [(shape, False), (shape, True)]
    assert (told["rounds"], told["seed"], told["peers"]) == (5, 3, ())
    assert (timed["rounds"], timed["seed"], timed["peers"]) == (7, None, None)


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_head_size_is_that_of_the_default_sizes(command, cli, error_of, fake_runner, tmp_path, seed_path) -> None:
    asked = (command, seed_path, "--head-dim", "64", "-o", tmp_path / "rows.jsonl")
    assert cli(*asked).exit_code == 0 and str(fake_runner.calls[0][0][0].shape) == "(4, 64, 8192, 64) float16"
    words = "--head-dim: expected it without --shape, which names the head_dim too"
    assert error_of(*asked, "--shape", "1,2,64,64") == words


def test_results_go_to_a_new_file_of_runs_which_git_ignores_unless_told(
    cli, fake_runner, tmp_path, seed_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("run", seed_path).exit_code == 0
    [path] = (tmp_path / "runs").iterdir()
    assert path.name.startswith("run-") and path.suffix == ".jsonl" and len(read_rows(path)) == 1
    assert "runs/" in (ROOT / ".gitignore").read_text().splitlines()


# Others are meant for head_dim 64, or for one above 128.
FOR_128 = sorted(path.stem for path in (ROOT / "schedules").glob("*.yaml") if is_meant(128, load_file(path).head_dims))


@pytest.mark.parametrize(
    "gpus, arguments, names",
    [
        (0, [], ["seed", "fa3_overlap", "best", "best_causal"]),
        (1, [], FOR_128),
        (0, ["schedules/prefetch.yaml"], ["prefetch"]),
    ],
)
def test_without_a_gpu_bench_takes_a_few_schedules_unless_told(
    gpus, arguments, names, cli, fake_runner, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(ROOT)
    gpu = VisibleGpu("GPU-0", "NVIDIA H200", (9, 0))
    monkeypatch.setattr("tl_attention.lab.measure.device.visible_gpus", lambda: (gpu,) * gpus)
    result = cli("bench", *arguments, "--dtype", "fp16", "--output", tmp_path / "rows.jsonl")
    assert result.exit_code == 0 and [row.name for row in read_rows(tmp_path / "rows.jsonl")] == names
    assert ("4 of" in result.stderr and "others are taken by name" in result.stderr) == (len(names) == 4)


def test_two_files_of_the_same_name_keep_their_folders(cli, fake_runner, tmp_path, seed_path) -> None:
    other = tmp_path / "seed.yaml"
    other.write_text(seed_path.read_text().replace("num_stages: 2", "num_stages: 1"))
    cli("bench", seed_path, other, INFERRED, "--dtype", "fp16", "--output", tmp_path / "rows.jsonl")
    assert [row.name for row in read_rows(tmp_path / "rows.jsonl")] == [str(seed_path), str(other), "inferred"]


def test_a_machine_that_fails_is_told_in_one_line_and_is_no_bad_input(cli, seed_path, tmp_path, monkeypatch) -> None:
    from tl_attention.lab.measure import bench
    from tl_attention.lab.measure.pool import CallFailed

    def run(*arguments, **options):
        raise CallFailed("timeout", "no answer within 120 s: killed")

    monkeypatch.setattr(bench, "measure", run)
    result = cli("run", seed_path, "--output", tmp_path / "rows.jsonl")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: the machine failed, not a schedule: no answer within 120 s: killed; 0 rows")


def test_an_interrupt_is_told_and_what_was_recorded_stays(cli, seed_path, tmp_path, monkeypatch) -> None:
    from tl_attention.lab.measure import bench
    from tl_attention.lab.measure.records import Row

    def run(candidates, record, progress, **options):
        record(Row("seed", "x", "runtime", {}, "ok"))
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure", run)
    result = cli("bench", seed_path, "--output", tmp_path / "rows.jsonl")
    assert result.exit_code == 130 and "rows already recorded are kept" in result.stderr
    assert (tmp_path / "rows.jsonl").read_text().count("\n") == 1
