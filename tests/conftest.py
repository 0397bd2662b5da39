"""What tests share: the command line in this process, the seed schedule with one line changed, and the GPU tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = pytest.StashKey[int]()
WORKER_KEY = "gpu_left_out"


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked gpu where torch sees none. Last, so that what -k and -m left out is not counted."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked or _gpu():
        return
    items[:] = [item for item in items if item not in marked]
    config.hook.pytest_deselected(items=marked)
    config.stash[LEFT_OUT] = len(marked)
    if hasattr(config, "workeroutput"):
        config.workeroutput[WORKER_KEY] = len(marked)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Under pytest-xdist every worker collects, and leaves out, the same tests."""
    counted = getattr(node, "workeroutput", {}).get(WORKER_KEY, 0)
    node.config.stash[LEFT_OUT] = max(counted, node.config.stash.get(LEFT_OUT, 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    left_out = config.stash.get(LEFT_OUT, 0)
    if left_out:
        terminalreporter.write_line(f"gpu: {left_out} tests left out, no GPU here")


@pytest.fixture(scope="session")
def schedules_dir() -> Path:
    """The shipped schedules."""
    return ROOT / "schedules"


@pytest.fixture(scope="session")
def seed_path(schedules_dir: Path) -> Path:
    """The seed schedule's file."""
    return schedules_dir / "seed.yaml"


@pytest.fixture
def cli() -> Callable[..., Any]:
    """Runs a command in this process; the result has exit_code, stdout and stderr."""
    from click.testing import CliRunner

    from tl_attention.cli import main

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
def changed_seed(tmp_path: Path, seed_path: Path) -> Callable[..., Path]:
    """Writes the seed schedule with one text replaced, or with text added where `old` is empty."""

    def write(old: str, new: str) -> Path:
        text = seed_path.read_text()
        assert not old or text.count(old) == 1, f"{old!r} must stand in the seed exactly once"
        path = tmp_path / "changed.yaml"
        path.write_text(text.replace(old, new) if old else text + new)
        return path

    return write


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Writes modules of a package of their own, by name, and imports the last."""
    from small_programs import programs

    yield from programs(tmp_path, monkeypatch)
