"""Tests marked gpu are left out without a GPU, and the run's last lines say how many."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiers import exhaustive

TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("number", range(3))
def test_on_the_gpu(number):
    assert False

@pytest.mark.transformers
def test_with_transformers():
    assert __import__("transformers")

@pytest.mark.browser
def test_in_a_browser():
    assert False

def test_here():
    pass
"""


def run_pytest(folder: Path, *options: str) -> str:
    shutil.copy(Path(__file__).with_name("conftest.py"), folder / "conftest.py")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n  transformers\n  browser\n")
    (folder / "test_sample.py").write_text(TESTS)
    # Also where this machine has a GPU or a browser: none is visible.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PATH": str(folder)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
@exhaustive
def test_a_run_without_gpu_says_how_many_gpu_tests_it_left_out(tmp_path: Path, options: tuple[str, ...]) -> None:
    output = run_pytest(tmp_path, *options)
    assert output.count("gpu: 3 tests left out, no GPU here") == 1
    assert output.count("browser: 1 tests left out, no chromium, chromedriver and selenium here") == 1
    installed = find_spec("transformers") is not None
    assert output.count("transformers: 1 tests left out, Transformers is not installed") == (not installed)
    assert f"{1 + installed} passed" in output


def test_tests_that_were_not_asked_for_are_not_counted(tmp_path: Path) -> None:
    assert "left out" not in run_pytest(tmp_path, "-k", "here")
