"""Tests check what each command prints and leaves behind, and that light commands start without torch."""

import re
import tomllib

import pytest
from conftest import ROOT, python
from told import MISTAKES, OUTPUTS, told

import tl_attention
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
def test_a_light_command_starts_without_torch_and_tilelang_and_leaves_the_folder_as_it_was(
    command, words, tmp_path
) -> None:
    (tmp_path / "schedules").symlink_to(ROOT / "schedules")
    (tmp_path / "rows.jsonl").write_text(
        '{"name": "seed", "label": "x", "sizes": "runtime", "status": "ok", "problem": {"batch": 1, "heads": 1, '
        '"seq_q": 1, "seq_kv": 1, "head_dim": 64, "dtype": "float16", "causal": false}}\n'
    )
    done = python("-c", f"{BLOCKED}from tl_attention.lab.cli import main; main({command!r})", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout and {path.name for path in tmp_path.iterdir()} == {"schedules", "rows.jsonl"}


def test_the_console_script_and_python_m_are_the_same_program() -> None:
    module, _, name = PROJECT["scripts"]["tl-attention"].partition(":")
    script = f"import {module}; {module}.{name}()"
    for words in (["-m", "tl_attention"], ["-c", script]):
        shown = python(*words, "--version")
        assert (shown.returncode, shown.stdout) == (0, f"{tl_attention.__version__}\n"), shown.stderr
    assert python("-m", "tl_attention", "--help").stdout.startswith("Usage: tl-attention [OPTIONS]")


def test_without_its_packages_one_line_names_the_extra() -> None:
    blocked = "import sys; sys.modules['click'] = None; from tl_attention.__main__ import run; run()"
    done = python("-c", blocked)
    expected = "error: tl-attention: click is missing, expected what `pip install 'tl-attention[schedules]'` has\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)


def test_the_version_is_that_of_the_project(cli) -> None:
    assert cli("--version").stdout.strip() == tl_attention.__version__


@pytest.mark.parametrize("row", [*MISTAKES, *OUTPUTS], ids=lambda row: row.get("mistake", row.get("output")))
def test_a_command_has_the_words_of_its_row_and_leaves_other_files_as_they_are(row, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    result, found = told(row)
    expected = {key: row[key] for key in ("says", "prints", "writes") if key in row}
    assert found == expected, "if it is to be so: python tests/told.py"
    assert isinstance(result.exception, SystemExit | None) and result.exit_code == (2 if "says" in row else 0)
    assert all(c.isprintable() or c == "\n" for c in result.output)
    assert "mistake" not in row or result.stderr.count("error: ") == len(row["says"])
    # The words of PyYAML's parser and of pydantic are theirs.
    assert not re.search(r"token\b|scalar|block mapping|flow sequence|mapping values|pydantic", result.stderr)


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
def test_a_head_size_is_that_of_the_default_sizes(command, cli, fake_runner, tmp_path, seed_path) -> None:
    asked = (command, seed_path, "--head-dim", "64", "-o", tmp_path / "rows.jsonl")
    assert cli(*asked).exit_code == 0 and str(fake_runner.calls[0][0][0].shape) == "(4, 64, 8192, 64) float16"


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
