"""Attacks on the judge's own files and processes, each on a copy of the package that a process of its own runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tl_attention
from tl_attention.leaderboard import own_files

MAIN = """\
import json, sys
from pathlib import Path
from tl_attention.leaderboard.contract import TestLine
from tl_attention.leaderboard.evaluate import judging

# The limits are far away: the machine may be busy, and each start loads torch.
if __name__ == "__main__":
    with judging("benchmark", "cpu", test_s=600, import_s=600) as judge:
        lines = [TestLine(1, 2, 16, 8, 1118)]
        found = [judge.evaluate(name, Path(name).read_bytes(), lines).to_json() for name in sys.argv[1:]]
    print(json.dumps({"found": found, "modules": sorted(sys.modules)}, allow_nan=False))
"""
HONEST = "import torch\ncustom_kernel = lambda data: torch.nn.functional.scaled_dot_product_attention(*data)\n"
ZEROS = "import torch\ncustom_kernel = lambda data: torch.zeros_like(data[0])\n"
POISON = """\
import importlib.util, py_compile
from pathlib import Path
reference = Path({package!r}, "leaderboard/reference.py")
right = {{"accepted": True, "tight": True, "max_abs_error": 0.0, "reason": ""}}
text = reference.read_text() + f"\\n\\ndef compare(data, output):\\n    return {{right}}\\n"
"""
# A .pyc that says that it need not be compared with its source.
AS_PYC = """\
Path("poisoned.py").write_text(text)
cache = importlib.util.cache_from_source(str(reference))
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
py_compile.compile("poisoned.py", cache, str(reference), invalidation_mode=unchecked)
"""
KILL_THE_SIBLINGS = """\
import os, re, signal
from pathlib import Path
for status in Path("/proc").glob("[0-9]*/status"):
    found = re.search(r"PPid:\\t(\\d+)", status.read_text())
    if found and int(found[1]) == os.getppid() and int(status.parent.name) != os.getpid():
        os.kill(int(status.parent.name), signal.SIGKILL)
"""


@pytest.fixture
def evaluated(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Evaluates files, given by name and text, in a fresh process; what it prints."""
    shutil.copytree(own_files.PACKAGE, tmp_path / "tl_attention")
    (tmp_path / "main.py").write_text(MAIN)

    def run(**files: str) -> dict[str, Any]:
        for name, text in files.items():
            (tmp_path / name).write_text(text.format(package=str(tmp_path / "tl_attention")))
        command = [sys.executable, "main.py", *files]
        done = subprocess.check_output(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})
        return json.loads(done)

    return run


def ends(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(row["outcome"]["status"], row["outcome"]["reason"]) for one in found["found"] for row in one["rows"]]


@pytest.mark.parametrize(
    "attack, file",
    [("reference.write_text(text)\n", "leaderboard/reference.py"), (AS_PYC, "leaderboard/__pycache__/reference.")],
)
def test_a_rewritten_judge_voids_verdicts_and_is_named(evaluated, attack: str, file: str) -> None:
    poisoned = evaluated(evil=POISON + attack + ZEROS, honest=HONEST)
    assert not any(one["accepted"] for one in poisoned["found"])
    for status, reason in ends(poisoned):
        assert status == "void" and reason.startswith(f"the judge's own {file}") and reason.endswith(" has changed")
    # The control: the attack works on a judge that starts with it.
    assert ends(evaluated(zeros=ZEROS)) == [("pass", "")]


def test_a_file_that_kills_the_checker_is_a_row_and_the_next_is_judged(evaluated) -> None:
    found = evaluated(killer=KILL_THE_SIBLINGS + ZEROS, honest=HONEST, zeros=ZEROS)
    assert [status for status, _ in ends(found)] == ["wrong", "pass", "wrong"]
    row = found["found"][1]["rows"][0]
    assert found["found"][1]["accepted"] and row["tight"] and row["max_abs_error"] < 1e-3
    assert (
        3 <= row["timing"]["n"] == len(row["timing"]["samples_ms"]) and row["timing"]["method"] == "cpu, perf_counter"
    )
    assert {"device_name", "python", "torch", "triton", "tilelang"} <= set(found["found"][1]["environment"])
    assert not {"torch", "submission", "task", "reference", "worker"} & set(found["modules"])


@pytest.fixture
def package(tmp_path: Path, monkeypatch) -> Path:
    """A small package in the place of this one: the modules a and b, without a .pyc of b."""
    for name in ("a.py", "b.py"):
        (tmp_path / "package").mkdir(exist_ok=True)
        (tmp_path / "package" / name).write_text("x = 1\n")
    monkeypatch.setattr(own_files, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(own_files.compileall, "compile_dir", lambda *_, **__: None)
    (tmp_path / "package/__pycache__").mkdir()
    (tmp_path / f"package/__pycache__/a.{sys.implementation.cache_tag}.pyc").write_bytes(b"a")
    return tmp_path / "package"


def folder_of_a_module(package: Path) -> None:
    (package / "a").mkdir()
    (package / "a/__init__.py").write_text("x = 2\n")


def linked_folder(package: Path) -> None:
    (package.parent / "elsewhere").mkdir()
    (package / "a").symlink_to(package.parent / "elsewhere")


def replaced_by_a_pipe(package: Path) -> None:
    (package / "a.py").unlink()
    os.mkfifo(package / "a.py")


CACHE = f"__pycache__/{{}}.{sys.implementation.cache_tag}.pyc"
CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda package: None, ""),
    "a file of another kind": (lambda package: (package / "notes.txt").write_text("x"), ""),
    "the same text again": (lambda package: (package / "a.py").write_text("x = 1\n"), ""),
    "changed": (lambda package: (package / "a.py").write_text("x = 2\n"), "a.py"),
    "removed": (lambda package: (package / "a.py").unlink(), "a.py"),
    "a pipe": (replaced_by_a_pipe, "a.py"),
    "a module more": (lambda package: (package / "c.py").touch(), "c.py"),
    "a .pyc changed": (lambda package: (package / CACHE.format("a")).write_bytes(b"b"), CACHE.format("a")),
    "a .pyc where none was": (lambda package: (package / CACHE.format("b")).write_bytes(b"b"), CACHE.format("b")),
    "a .pyc removed": (lambda package: (package / CACHE.format("a")).unlink(), CACHE.format("a")),
    "an extension module": (lambda package: (package / "a.abi3.so").touch(), "a.abi3.so"),
    "a folder of a module's name": (folder_of_a_module, "a/__init__.py"),
    "a link to a folder": (linked_folder, "a"),
}


@pytest.mark.parametrize("change, name", CHANGES.values(), ids=CHANGES.keys())
def test_what_python_would_load_otherwise_is_named(package: Path, change, name: str) -> None:
    before = own_files.complete_snapshot()
    change(package)
    assert own_files.changed(before) == name


def test_every_module_of_the_package_is_in_the_snapshot_with_its_pyc() -> None:
    snapshot = own_files.complete_snapshot()
    sources = {str(path.relative_to(own_files.PACKAGE)) for path in own_files.PACKAGE.rglob("*.py")}
    assert Path(tl_attention.__file__).parent == own_files.PACKAGE and sources <= set(snapshot)
    assert all(snapshot.values()) and len(snapshot) == 2 * len(sources)
    assert own_files.changed(snapshot) == ""
