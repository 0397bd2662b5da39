"""Tests share the command line in this process, the seed schedule with one line changed, and the GPU's marks."""

import compileall
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

# Before torch is there, for every process of the tests: their tensors are so small that threads only wait, and spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
LEFT_OUT = pytest.StashKey[dict[str, int]]()
WORKER_KEY = "left_out"
SHARED = "TL_ATTENTION_TESTS_SHARED"
# Set where tests may lower kernels that are not in the golden code.
EXHAUSTIVE = "TL_ATTENTION_TESTS_EXHAUSTIVE"
# Where a server of PostgreSQL may be: Debian has it outside of PATH.
POSTGRES = os.pathsep.join((os.environ.get("PATH", ""), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))))
# Says for each marker whether its tests can run, and which words explain it if not.
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "exhaustive": (lambda: EXHAUSTIVE in os.environ, "`make test-all` runs them"),
    "gpu": (lambda: import_module("torch").cuda.is_available(), "no GPU here"),
    "transformers": (lambda: find_spec("transformers") is not None, "Transformers is not installed"),
    "kernels": (lambda: find_spec("kernels") is not None, "Hugging Face's kernels is not installed"),
    "browser": (
        lambda: all(map(shutil.which, ("chromium", "chromedriver"))) and find_spec("selenium") is not None,
        "no chromium, chromedriver and selenium here",
    ),
    "postgres": (
        lambda: shutil.which("initdb", path=POSTGRES) is not None and find_spec("psycopg") is not None,
        "no PostgreSQL server and psycopg here",
    ),
}


def python(*arguments: str, cwd: str | Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python in a process of its own, which finds the package, what all tests share, and the tools."""
    folders = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)} | environment,
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the tests that only `make test-all` runs, too")


def pytest_configure(config: pytest.Config) -> None:
    """Makes a folder that all processes of a run share, for `once`; the folder is gone with the run."""
    if not hasattr(config, "workerinput"):
        # So that no test finds a .pyc that another one has just written among the judge's own files.
        compileall.compile_dir(ROOT / "tl_attention", quiet=2)
        folder = TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        os.environ[SHARED] = folder.name
        if config.getoption("exhaustive"):
            os.environ[EXHAUSTIVE] = "1"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that need what is not there. It runs last, so tests that -k and -m left out are not counted."""
    counts: dict[str, int] = {}
    for marker, (is_there, _) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if not marked or is_there():
            continue
        items[:] = [item for item in items if item not in marked]
        config.hook.pytest_deselected(items=marked)
        counts[marker] = len(marked)
    config.stash[LEFT_OUT] = counts
    if hasattr(config, "workeroutput"):
        config.workeroutput[WORKER_KEY] = counts


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the counts from a worker: under pytest-xdist every worker collects, and leaves out, the same tests."""
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get(WORKER_KEY) or node.config.stash.get(
        LEFT_OUT, {}
    )


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for marker, left_out in config.stash.get(LEFT_OUT, {}).items():
        terminalreporter.write_line(f"{marker}: {left_out} tests left out, {NEEDS[marker][1]}")


@pytest.fixture(scope="session")
def schedules_dir() -> Path:
    """Returns the folder of the shipped schedules."""
    return ROOT / "schedules"


@pytest.fixture(scope="session")
def seed_path(schedules_dir: Path) -> Path:
    """Returns the seed schedule's file."""
    return schedules_dir / "seed.yaml"


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Runs a command in this process; the result has exit_code, stdout and stderr."""
    from click.testing import CliRunner

    from tl_attention.lab.cli import main

    return lambda *arguments: CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def error_of(cli: Callable[..., Any]) -> Callable[..., str]:
    """Runs a command that must fail as bad input does: one line on stderr, nothing on stdout, exit code 2."""

    def run(*arguments: object) -> str:
        result = cli(*arguments)
        assert isinstance(result.exception, SystemExit), f"{arguments}: {result.exception!r}"
        assert result.exit_code == 2 and not result.stdout, f"{arguments}: {result.output}"
        assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: "), result.stderr
        return result.stderr.removeprefix("error: ").rstrip("\n")

    return run


@pytest.fixture
def mine(tmp_path: Path) -> Callable[[str], Path]:
    """Gives a function that writes a text as mine.yaml."""

    def write(text: str) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture(scope="session")
def validator() -> Any:
    """Holds the keys of a schedule's file, as plain values, to the JSON Schema."""
    import jsonschema

    from tl_attention.lab.files.schema import json_schema

    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture
def changed_seed(tmp_path: Path, seed_path: Path) -> Callable[..., Path]:
    """Writes the seed schedule with one text replaced, or with text added where `old` is empty."""

    def write(old: str, new: str) -> Path:
        text = seed_path.read_text()
        assert not old or text.count(old) == 1, f"{old!r} must stand in the seed exactly once"
        path = tmp_path / "changed.yaml"
        path.write_text(text.replace(old, new) if old else text + new)
        return path

    return write
