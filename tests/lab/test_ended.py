"""A command ended from outside, by SIGTERM above all, leaves no process, no empty file and no warning behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from conftest import ROOT

from tl_attention.lab.cli.command import ENDING, OneLineErrors

SAID = "interrupted; rows already recorded are kept\n"
# As a package that asks whether another one is there.
SWALLOWS = """
import signal
try:
    signal.raise_signal(signal.SIGTERM)
except BaseException:
    pass
"""


def ended_by(number: int, script: str = "") -> Result:
    """Returns the result of a command that gets the signal, or that imports a module that gets the signal."""

    @click.group(cls=OneLineErrors)
    def group() -> None:
        pass

    @group.command()
    def wait() -> None:
        try:
            if script:
                __import__(script)
            else:
                signal.raise_signal(number)
            time.sleep(60)
        finally:
            click.echo("closed")

    return CliRunner().invoke(group, ["wait"])


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_ends_closes_what_is_open_first(number) -> None:
    # A shell starts what is in its background with SIGINT ignored.
    before = signal.signal(number, signal.SIG_DFL)
    try:
        result = ended_by(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert (result.exit_code, result.stdout, result.stderr) == (128 + number, "closed\n", SAID)


def test_one_that_comes_during_an_import_is_not_swallowed_by_it(tmp_path, monkeypatch) -> None:
    (tmp_path / "swallows_what_is_raised.py").write_text(SWALLOWS)
    monkeypatch.syspath_prepend(tmp_path)
    result = ended_by(signal.SIGTERM, "swallows_what_is_raised")
    assert (result.exit_code, result.stderr) == (128 + signal.SIGTERM, SAID)


def test_one_that_is_ignored_stays_so(monkeypatch) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    try:
        assert ended_by(signal.SIGHUP).exit_code == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_bench_leaves_no_process_no_empty_file_and_no_warning(tmp_path) -> None:
    command = ["bench", "seed", "--shape", "1,1,128,128", "--dtype", "fp16", "--output", "rows.jsonl"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tl_attention", *command],
        cwd=tmp_path,
        env=os.environ | {"TILELANG_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (children := children_of(process.pid)):
        assert process.poll() is None
        time.sleep(0.05)
    process.terminate()
    # At its end, as those that it started have its pipes.
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and not output
    assert errors.removeprefix("compile: 1 step\n") == SAID
    assert not (tmp_path / "rows.jsonl").exists()
    for _ in range(100):
        if not any(Path(f"/proc/{child}").exists() for child in children):
            break
        time.sleep(0.05)
    else:
        pytest.fail("a process of it is left")


def children_of(parent: int) -> list[int]:
    """Returns the children of a process that were spawned, whether they have begun or not."""
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
