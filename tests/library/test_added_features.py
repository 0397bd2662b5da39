"""A feature takes few files: each patch adds one to a copy of the package, where it passes from the call to the proof.

A patch is what somebody would commit: `score_bias.patch` adds a number to every score, `head_scales.patch` multiplies
each head's scores. When one no longer applies, change it with the code that it patches, and keep it within MOST_FILES.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

HERE = Path(__file__).parent
PATCHES = ("score_bias.patch", "head_scales.patch")
MOST_FILES = 5


@pytest.mark.parametrize("patch", PATCHES)
def test_a_patch_applies_and_is_of_few_files_of_the_package(patch: str) -> None:
    subprocess.run(["git", "apply", "--check", HERE / patch], cwd=ROOT, check=True)
    files = re.findall(r"^\+\+\+ b/(.+)$", (HERE / patch).read_text(), re.M)
    assert 0 < len(files) <= MOST_FILES and all(file.startswith("tl_attention/") for file in files)


@pytest.mark.exhaustive
@pytest.mark.parametrize("patch", PATCHES)
def test_the_feature_of_a_patch_passes_from_the_call_to_the_proof(patch: str, tmp_path: Path) -> None:
    for name in ("tl_attention", "schedules", "results", "tests", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    subprocess.run(["git", "apply", HERE / patch], cwd=tmp_path, check=True, env={**os.environ, "GIT_DIR": "/nowhere"})
    # Python finds the copy of the package first.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/library/patched.py"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout) and "skipped" not in done.stdout
