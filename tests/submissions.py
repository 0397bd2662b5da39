"""What the tests of packed submissions share: the texts, each made once, and fresh interpreters to run them in."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from tl_attention.build.compile import CompiledKernel, compile_kernel
from tl_attention.files.schedule_file import load
from tl_attention.leaderboard import submission
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

ROOT = Path(__file__).parents[1]
SEED_FILE = ROOT / "schedules" / "seed.yaml"
COMMITTED = ROOT / "leaderboard_submit.py"
INFERRED = Schedule(lowering="inferred", block_M=128, block_N=128, threads=256, num_stages=2)
SCHEDULES = {"seed": load(SEED_FILE), "inferred": INFERRED, "best": load(ROOT / "schedules" / "best.yaml")}

# Stands before a test's own lines in a fresh interpreter: the modules, the compiler and the standard output that a
# server lacks.
PREAMBLE = """
import os, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
is_file = os.path.isfile
os.path.isfile = lambda path: is_file(path) and os.path.basename(path) not in {absent!r}
sys.stdout = None
import submission
print("print is harmless")
"""


@cache
def text(name: str, form: str) -> str:
    """The file packed from one of SCHEDULES."""
    return submission.FORMS[form](SCHEDULES[name], name=name)


@cache
def compiled(name: str) -> CompiledKernel:
    return compile_kernel(SCHEDULES[name], Variant(128, "float16"))


def run_beside(folder: Path, packed: str, code: str, absent: tuple[str, ...] = ()) -> str:
    """Import the text as submission.py in a fresh interpreter without standard output, then run code; its stderr.

    `absent`: modules, and file names, that are not there.
    """
    (folder / "submission.py").write_text(packed, encoding="utf-8")
    script = PREAMBLE.format(absent=("task", "tl_attention", *absent)) + code
    result = subprocess.run([sys.executable, "-c", script], cwd=folder, stderr=subprocess.PIPE, text=True, timeout=180)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


def import_file(path: Path, packed: str) -> ModuleType:
    """Write the text there and import it."""
    path.write_text(packed, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
