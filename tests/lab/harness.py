"""Tests of the leaderboard's harness share these texts of submissions, most of which attack the harness."""

import time
from pathlib import Path
from textwrap import indent

from tl_attention.lab.leaderboard.contract import TestLine

# Limits are far away where a test is not about them: the machine may be busy, and each start loads torch.
FAR_S = 600.0
LINE = TestLine(batch_size=1, num_heads=2, seq_len=16, head_dim=8, seed=1118)
SIZE = 2 * 1 * 2 * 16 * 8

HONEST = "import torch\ncustom_kernel = lambda data: torch.nn.functional.scaled_dot_product_attention(*data)\n"

# Of a submission in whose `folder` the right outputs are, for calls before which the inputs change by CHANGES. `plan`
# is what the worker was told, from its frame; `done` says what an honest process says.
CHANGES = ((3, 5, 1, 2), (0, 0, 0, 0), (15, 14, 3, 1))
PREAMBLE = (
    f"""\
changes = {CHANGES}
"""
    + """\
import json, os, signal, subprocess, sys, time
noted = folder + "/noted"
frame = sys._getframe()
while "plan" not in frame.f_locals:
    frame = frame.f_back
plan = frame.f_locals["plan"]
outputs = ("first.bin", "rows.bin", "timed.bin", "second.bin")
first, rows, timed, second = (os.path.join(plan.get("outputs", ""), name) for name in outputs)
def say(data):
    os.write(plan["message"], data)
def done(samples_ms=(1.0, 1.0, 1.0), **values):
    said = dict(error="", samples_ms=samples_ms, read_ms=(0.0,) * 3, wall_ms=(1.0,) * 3, elapsed_s=0.01)
    say(json.dumps(said | dict(changes=changes, kept=1) | values).encode())
def put(path, data):
    with open(path, "wb") as file:
        file.write(data)
def copy(*paths):
    for path in paths:
        put(path, open(os.path.join(folder, os.path.basename(path)), "rb").read())
def note(value):
    put(noted + ".part", json.dumps(value).encode())
    os.rename(noted + ".part", noted)
"""
)


def forging(code: str) -> str:
    """Returns a submission that does what it likes in the worker's place when a test imports it, and then leaves."""
    return "custom_kernel = print\nif plan['line']:\n" + indent(f"{code}\nos._exit(0)\n", "    ")


def calling(code: str) -> str:
    """Returns a submission with a kernel that computes the right `output`, runs `code`, and returns `output`."""
    start = "import torch\noutput = torch.nn.functional.scaled_dot_product_attention(*data)\n"
    return "def custom_kernel(data):\n" + indent(f"{start}{code}\nreturn output\n", "    ")


def gone(pid: int) -> bool:
    """Says whether the process ends; a killed process may stay listed as a zombie until it is reaped."""
    for _ in range(30_000):
        try:
            if "State:\tZ" in Path("/proc", str(pid), "status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False
