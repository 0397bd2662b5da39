"""A feature takes few files: a patch adds one to a copy of the package, where it passes from the call to the proof.

`score_bias.patch` is what somebody would commit to add a number to every score. When the patch no longer applies,
change it with the code that it patches, and keep it within MOST_FILES.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT, PATCH = Path(__file__).parents[1], Path(__file__).with_name("score_bias.patch")
MOST_FILES = 7


def test_the_patch_applies_and_is_of_few_files_of_the_package() -> None:
    subprocess.run(["git", "apply", "--check", PATCH], cwd=ROOT, check=True)
    files = re.findall(r"^\+\+\+ b/(.+)$", PATCH.read_text(), re.M)
    assert 0 < len(files) <= MOST_FILES and all(file.startswith("tl_attention/") for file in files)


@pytest.mark.exhaustive
def test_a_feature_that_the_patch_adds_passes_from_the_call_to_the_proof(tmp_path) -> None:
    for name in ("tl_attention", "schedules", "results", "tests", "tools"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "golden"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    subprocess.run(["git", "apply", PATCH], cwd=tmp_path, check=True, env={**os.environ, "GIT_DIR": "/nowhere"})
    # Python finds the copy of the package first.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/patched.py"],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout) and "skipped" not in done.stdout
