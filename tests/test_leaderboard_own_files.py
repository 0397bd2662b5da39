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
from harness import HONEST, ZEROS
from tiers import exhaustive

from tl_attention.leaderboard import own_files

MAIN = """\
import json, sys
from pathlib import Path
from harness import FAR_S, LINE
from tl_attention.leaderboard.evaluate import judging
if __name__ == "__main__":
    with judging("benchmark", "cpu", test_s=FAR_S, import_s=FAR_S) as judge:
        found = [judge.evaluate(name, Path(name).read_bytes(), [LINE]).to_json() for name in sys.argv[1:]]
    print(json.dumps({"found": found, "modules": sorted(sys.modules)}, allow_nan=False))
"""
POISON = """\
import importlib.util, os, py_compile
from pathlib import Path
reference = Path(os.environ["PYTHONPATH"], "tl_attention/leaderboard/reference.py")
right = {"accepted": True, "tight": True, "max_abs_error": 0.0, "reason": ""}
text = f"{reference.read_text()}\\ndef compare(data, output):\\n    return {right}\\n"
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
    """Evaluates files, given by name and text, in a fresh process; what it prints, and the `ends` of the tests."""
    shutil.copytree(own_files.PACKAGE, tmp_path / "tl_attention")
    shutil.copy(Path(__file__).with_name("harness.py"), tmp_path)
    (tmp_path / "main.py").write_text(MAIN)

    def run(**files: str) -> dict[str, Any]:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        done = json.loads(subprocess.check_output([sys.executable, "main.py", *files], cwd=tmp_path, env=environment))
        outcomes = [one["rows"][0]["outcome"] for one in done["found"]]
        return done | {"ends": [(outcome["status"], outcome["reason"]) for outcome in outcomes]}

    return run


@exhaustive
@pytest.mark.parametrize(
    "attack, file",
    [("reference.write_text(text)\n", "leaderboard/reference.py"), (AS_PYC, "leaderboard/__pycache__/reference.")],
)
def test_a_rewritten_judge_voids_verdicts_and_is_named(evaluated, attack: str, file: str) -> None:
    poisoned = evaluated(evil=POISON + attack + ZEROS, honest=HONEST)
    assert not any(one["accepted"] for one in poisoned["found"])
    for status, reason in poisoned["ends"]:
        assert status == "void" and reason.startswith(f"the judge's own {file}") and reason.endswith(" has changed")
    # The control: the attack works on a judge that starts with it.
    assert evaluated(zeros=ZEROS)["ends"] == [("pass", "")]


@exhaustive
def test_a_file_that_kills_the_checker_is_a_row_and_the_next_is_judged(evaluated) -> None:
    found = evaluated(killer=KILL_THE_SIBLINGS + ZEROS, honest=HONEST)
    assert [status for status, _ in found["ends"]] == ["wrong", "pass"]
    honest = found["found"][1]
    row, timing = honest["rows"][0], honest["rows"][0]["timing"]
    assert honest["accepted"] and row["tight"] and row["max_abs_error"] < 1e-3
    assert 3 <= timing["n"] == len(timing["samples_ms"]) and timing["method"] == "cpu, perf_counter"
    assert {"device_name", "python", "torch", "tilelang", "tl-attention"} <= set(honest["environment"])
    assert not {"torch", "submission", "task", "reference", "worker"} & set(found["modules"])


CACHE = f"__pycache__/{{}}.{sys.implementation.cache_tag}.pyc"
A_PYC, B_PYC = CACHE.format("a"), CACHE.format("b")


@pytest.mark.parametrize(
    "change, name",
    [
        (":", ""),
        ("echo x > notes.txt", "notes.txt"),
        ("cp a.py again; mv again a.py", ""),
        ("echo x = 2 > a.py", "a.py"),
        ("rm a.py", "a.py"),
        ("rm a.py; mkfifo a.py", "a.py"),
        ("touch c.py", "c.py"),
        (f"echo b > {A_PYC}", A_PYC),
        (f"echo b > {B_PYC}", B_PYC),
        (f"rm {A_PYC}", A_PYC),
        (f"touch {B_PYC}.12", ""),
        ("touch a.abi3.so", "a.abi3.so"),
        ("mkdir a; echo x = 2 > a/__init__.py", "a/__init__.py"),
        ("mkdir ../elsewhere; ln -s ../elsewhere a", "a"),
    ],
)
def test_what_python_would_load_otherwise_is_named(tmp_path: Path, monkeypatch, change: str, name: str) -> None:
    """In a small package: the modules a and b, without a .pyc of b."""
    (tmp_path / "package/__pycache__").mkdir(parents=True)
    for file in ("a.py", "b.py", A_PYC):
        (tmp_path / "package" / file).write_text("x = 1\n")
    monkeypatch.setattr(own_files, "PACKAGE", tmp_path / "package")
    monkeypatch.setattr(own_files.compileall, "compile_dir", lambda *_, **__: None)
    before = own_files.complete_snapshot()
    subprocess.run(change, shell=True, check=True, cwd=tmp_path / "package")
    assert own_files.changed(before) == name


def test_every_module_of_the_package_is_in_the_snapshot_with_its_pyc() -> None:
    snapshot = own_files.complete_snapshot()
    sources = [path.relative_to(own_files.PACKAGE) for path in own_files.PACKAGE.rglob("*.py")]
    caches = [path.parent / CACHE.format(path.stem) for path in sources]
    assert {"leaderboard/evaluate.py", *map(str, sources), *map(str, caches)} <= set(snapshot)
    assert all(snapshot[str(path)] for path in sources) and own_files.changed(snapshot) == ""
