"""Tests of packed submissions share the texts, each made once, and fresh interpreters to run them in."""

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from conftest import ROOT
from once import Given, shared

from tl_attention.lab.leaderboard.submission import VARIANT, pack
from tl_attention.schedule.files.schedule_file import load

COMMITTED = ROOT / "leaderboard_submit.py"
# One schedule of each lowering.
SCHEDULES = {name: load(ROOT / "schedules" / f"{name}.yaml") for name in ("best", "seed", "mma_sync", "inferred")}
INFERRED = SCHEDULES["inferred"]

# Stands before a test's own lines in a fresh interpreter, which lacks what a server may lack.
PREAMBLE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
sys.stdout = None
import submission
print("print is harmless")
"""


@cache
def text(name: str) -> str:
    """Returns the file packed from one of SCHEDULES."""
    schedule = SCHEDULES[name]
    return shared("packed", Given(schedule, VARIANT), lambda: pack(name, schedule))


def run_beside(folder: Path, packed: str, code: str, absent: tuple[str, ...] = ()) -> str:
    """Imports the text as submission.py in a fresh interpreter without these modules, runs code, and returns stderr."""
    (folder / "submission.py").write_text(packed, encoding="utf-8")
    script = PREAMBLE.format(absent=("task", "tl_attention", *absent)) + code
    result = subprocess.run([sys.executable, "-c", script], cwd=folder, stderr=subprocess.PIPE, text=True, timeout=180)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def import_file(path: Path, packed: str) -> ModuleType:
    """Writes the text to the path and imports it."""
    path.write_text(packed, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
