"""Submissions attack the judge on the CPU with a tiny test, and only the right numbers get "pass".

What a submission makes of its process stands in the place of the worker, and nothing of it runs in this process.
"""

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from harness import CHANGES, FAR_S, LINE, PREAMBLE, SIZE, calling, forging, gone
from tiers import sampled
from torch.nn.functional import scaled_dot_product_attention as attention

from tl_attention.lab.leaderboard.evaluate import LOG_BYTES, MESSAGE_BYTES, evaluate
from tl_attention.lab.leaderboard.inputs import Change, Inputs
from tl_attention.lab.leaderboard.reference import generate_input
from tl_attention.lab.leaderboard.results import Evaluation, class_lines

# Enough for the worker where the submission never gets so far as to compute; torch itself takes a second to import.
NO_TORCH = "class Tensor:\n    copy_ = zero_ = __getitem__ = None\n"


@pytest.fixture
def judged(tmp_path: Path, monkeypatch) -> Callable[..., Evaluation]:
    """Gives a function that evaluates a submission whose text follows the preamble.

    What the submission notes is in tmp_path, beside the right outputs.
    """
    inputs = Inputs(*(generate_input(**asdict(replace(LINE, seed=LINE.seed + n)), device="cpu") for n in (0, 1)))
    outputs, rows = [attention(*inputs.data)], []
    for change in map(Change._make, CHANGES):
        inputs.change_keys(change)
        inputs.change_queries(change)
        outputs.append(attention(*inputs.data))
        rows.append(outputs[-1][inputs.rows_from(change.row)])
    inputs.change_all()
    right = {"first": outputs[0], "rows": torch.stack(rows), "timed": outputs[2], "second": attention(*inputs.data)}
    for name, output in right.items():
        output.numpy().tofile(tmp_path / f"{name}.bin")

    (tmp_path / "torch.py").write_text(NO_TORCH)

    def run(source: str, mode: str = "benchmark", test_s: float = FAR_S) -> Evaluation:
        text = f"folder = {str(tmp_path)!r}\n{PREAMBLE}{source}"
        with monkeypatch.context() as patch:
            if "torch" not in source:
                patch.setenv("PYTHONPATH", str(tmp_path))
            return evaluate("attack.py", text.encode(), [LINE], mode, "cpu", test_s=test_s, import_s=FAR_S)

    return run


@pytest.mark.parametrize("mode", ["benchmark", "test"])
def test_the_numbers_alone_decide(judged, mode: str) -> None:
    """This test is the control of the forgeries below: the same program with the right bytes passes."""
    found = judged(
        forging("os.write(2, b'submission: runs by_nvcc')\ncopy(first, rows, timed, second)\ndone()"), mode=mode
    )
    [row] = found.rows
    assert (row.outcome.status, row.outcome.reason, found.accepted, found.tight) == ("pass", "", True, True)
    assert row.way == "by_nvcc" and row.max_abs_error is not None and found.submission == "attack.py"
    timed = row.timing and (row.timing.samples_ms, row.timing.stopped_by)
    assert timed == (((1.0, 1.0, 1.0), "err/mean < 0.001") if mode == "benchmark" else None)


def test_error_is_measured_even_where_the_contract_accepts(judged) -> None:
    found = judged(calling("print('harmless')\noutput = output + 0.005"))
    [row] = found.rows
    assert (row.outcome.status, row.accepted, row.tight, found.accepted, found.tight) == ("pass", *[True, False] * 2)
    assert "beyond rtol = atol = 0.001" in row.outcome.reason and row.way == ""
    assert row.max_abs_error == pytest.approx(0.005, abs=1e-3) and row.timing.n >= 3


PATCHED_TORCH_AND_PYTHON = """\
import builtins, types
def no(*arguments, **keywords):
    return torch.zeros((), dtype=torch.int64)
for name in ("__gt__", "__lt__", "__ge__", "__ne__", "gt", "lt", "ne", "any"):
    setattr(torch.Tensor, name, no)
torch.gt = torch.lt = torch.ne = torch.any = torch.isnan = no
torch.isfinite = lambda tensor: types.SimpleNamespace(sum=tensor.numel)
torch.allclose = torch.equal = torch.all = lambda *arguments, **keywords: True
builtins.all = lambda *arguments: True
builtins.any = lambda *arguments: False
"""
# The control: a check in this process accepts what is returned.
FOOLED = "assert torch.allclose(output, output + 1)"
NO_VALID, BEYOND = "no valid message from the process: ", "beyond rtol = atol = 0.01"
TIMED = "right when it was not timed, wrong in timed call "
OTHER = "right at first, wrong for other inputs at the same addresses: "
AT_ONCE = f"{TIMED}2, in rows that were not read at once: "
LATE = "2 of 3 timed calls went on after their end: "
READ_LATE = f"{LATE}their outputs were read up to 10.1 ms later, expected 10 ms at most"
IDLE_LATE = f"{LATE}the device was idle up to 98 ms later, expected 20 ms at most"
CALLS = {
    "torch and Python patched": (f"output.zero_()\n{PATCHED_TORCH_AND_PYTHON}{FOOLED}", "wrong", BEYOND),
    "wrong numbers": ("output += 0.5", "wrong", BEYOND),
    "inputs zeroed": ("data[0].zero_()\noutput = data[2].mean(dim=2, keepdim=True).expand_as(output)", "wrong", BEYOND),
    "an exception": ("raise ValueError('no such\\nlength')", "error", "ValueError: no such length"),
    "stdout used": ("sys.stdout.write('x')", "error", "AttributeError: 'NoneType' object has no attribute 'write'"),
    "float32": ("output = output.float()", "error", "TypeError: the output's dtype is torch.float32, expected torch.f"),
    "no tensor": (
        "output = None",
        "error",
        "TypeError: custom_kernel returned NoneType, expected a torch.Tensor, no subclass",
    ),
}
FORGERIES = {
    "a verdict": ('copy(first, rows, timed, second)\nsay(b\'{"status": "pass"}\')', "error", NO_VALID),
    "a verdict in the message": ("copy(first, rows, timed, second)\ndone(accepted=True)", "error", "accepted: "),
    "a flood": (f"copy(first, rows, timed, second)\nsay(b' ' * {100 * MESSAGE_BYTES})\ndone()", "error", NO_VALID),
    "zeros": (f"put(first, bytes({SIZE}))\ncopy(rows, timed, second)\ndone()", "wrong", BEYOND),
    "NaN": (
        f"put(first, b'\\xff' * {SIZE})\ncopy(rows, timed, second)\ndone()",
        "wrong",
        "256 of 256 values are not finite",
    ),
    "zeros when timed": (
        f"copy(first, timed, second)\nput(rows, bytes({3 * SIZE // 4}))\ndone()",
        "wrong",
        f"{TIMED}1: ",
    ),
    "zeros where it is not read at once": (
        f"copy(first, rows, second)\nput(timed, bytes({SIZE}))\ndone()",
        "wrong",
        AT_ONCE,
    ),
    "zeros at last": (f"copy(first, rows, timed)\nput(second, bytes({SIZE}))\ndone()", "wrong", OTHER),
    "a link to the first output": ("copy(first, rows, timed)\nos.link(first, second)\ndone()", "wrong", OTHER),
    "other changes": ("copy(first, rows, timed, second)\ndone(changes=changes[::-1])", "wrong", f"{TIMED}1: "),
    "changes to nothing": (
        "copy(first, rows, timed, second)\ndone(changes=[(0, 16, 0, 0)] * 3)",
        "error",
        "not judged: ",
    ),
    "no rows": ("copy(first, timed, second)\ndone()", "error", "rows.bin"),
    "a call left out": (
        "copy(first, rows, timed, second)\ndone(wall_ms=[1.0])",
        "error",
        "wall_ms has 1 values, expected",
    ),
    "no call kept": ("copy(first, rows, timed, second)\ndone(kept=3)", "error", "kept is 3, expected the number"),
    "read late": ("copy(first, rows, timed, second)\ndone(read_ms=[0.0, 10.1, 10.1])", "wrong", READ_LATE),
    "idle late": ("copy(first, rows, timed, second)\ndone(wall_ms=[99.0, 9.0, 50.0])", "wrong", IDLE_LATE),
    "no output": ("done()", "error", "No such file"),
    "half an output": (f"put(first, bytes({SIZE // 2}))\ndone()", "error", "256 bytes, expected 512"),
    "more than an output": (f"put(first, bytes({SIZE + 2}))\ndone()", "error", "514 bytes, expected"),
    "a folder": ("os.mkdir(first)\ndone()", "error", "Is a directory"),
    "it leaves": ("print('about to leave', file=sys.stderr)\nos._exit(3)", "crash", "exit code 3: about to leave"),
    "message closed": ("os.close(plan['message'])\nprint('check: pass', file=sys.stderr)", "crash", "0: check: pass"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "exit code -9"),
    "a signal without a name": ("os.kill(os.getpid(), signal.SIGRTMIN + 2)", "crash", "exit code -36"),
    "a terminal's colours": ("print('\\x1b[31m', file=sys.stderr)", "crash", "exit code 0: \\x1b[31m"),
}
TIMES = {
    "untimed": ("[]", "0 timed calls, expected 3 to 100"),
    "times whose sum is no number": ("[float('nan')] * 3", "samples_ms[0]: expected a finite number, found nan"),
    "times that are no numbers": ("['1.0'] * 3", "samples_ms[0]: expected a number"),
}
IMPORTS = {
    "this package": ("import tl_attention.lab.leaderboard.contract", "ModuleNotFoundError"),
    "no kernel": ("x = 1", "TypeError: submission.py defines no custom_kernel that can be called"),
    "it exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "it leaves at once": ("os._exit(3)", "exit code 3"),
    "no Python": ("x = 1\0", "SyntaxError: "),
}
REMOVES_ITS_FOLDER = "import os, shutil\nshutil.rmtree(os.getcwd())\ncustom_kernel = print\n"
ATTACKS = {
    "no folder": (REMOVES_ITS_FOLDER, "crash", "its process cannot be started: "),
    **{name: (calling(code), *end) for name, (code, *end) in CALLS.items()},
    **{name: (forging(code), *end) for name, (code, *end) in FORGERIES.items()},
    **{
        name: (forging(f"copy(first, rows, timed, second)\ndone({t})"), "error", reason)
        for name, (t, reason) in TIMES.items()
    },
    **{name: (code, "not run", f"the first import failed: {end}") for name, (code, end) in IMPORTS.items()},
}


# `make test` makes every sixth of them, and these.
OFTEN = {"read late", "zeros where it is not read at once"}


@pytest.mark.parametrize("name", sampled(ATTACKS, OFTEN.union([*ATTACKS][::6])))
def test_anything_else_is_a_row_with_a_reason_and_does_not_pass(judged, name: str) -> None:
    source, status, reason = ATTACKS[name]
    found = judged(source)
    [row] = found.rows
    assert row.outcome.status == status and reason in row.outcome.reason, row.outcome
    assert row.outcome.reason.isprintable() and len(row.outcome.reason) <= 300
    assert not (row.accepted or row.tight or found.accepted or row.timing)
    assert (found.parent_import.status == "pass") == (status != "not run")


def test_forged_lines_and_a_flood_of_them_go_no_further_than_the_log(judged) -> None:
    lines = "b'x' * 10**7 + b'\\xff last\\nbenchmark.3: runs=3, mean=0.0010 ms\\ncheck: pass\\n'"
    found = judged(forging(f"os.write(1, {lines})\nos.write(2, {lines})"))
    printed, log = list(class_lines(found)), found.rows[0].outcome.log
    assert len(printed) == 2 and printed[0].startswith("benchmark.0: ") and printed[1] == "check: fail"
    assert json.loads(json.dumps(found.to_json()))["accepted"] is False
    assert "x\N{REPLACEMENT CHARACTER} last\nbenchmark.3: " in log and log.endswith("\ncheck: pass")
    assert len(log.encode()) <= LOG_BYTES + 2


TOLD = """\
import task
own_session, here = os.getsid(0) == os.getpgrp() == os.getpid(), os.getcwd()
at_home = here == os.path.dirname(os.path.abspath(__file__))
print(own_session, at_home, sys.stdin.read(), sys.stdout is None, here, file=sys.stderr)
custom_kernel = print
"""


def test_a_file_is_imported_twice_in_its_folder_in_a_session_of_its_own_with_nothing_to_read(judged) -> None:
    found = judged(TOLD)
    first, second = found.parent_import.log, found.rows[0].outcome.log
    assert first.startswith("True True  False /") and second.startswith(first.replace("False", "True"))


@pytest.mark.parametrize("code", sampled(["", "done()", "os.close(plan['message'])\nwhile True: pass"], ["done()"]))
def test_a_process_that_never_ends_meets_its_limit(judged, code: str) -> None:
    [row] = judged(forging(f"{code}\ntime.sleep(600)"), test_s=1.5).rows
    assert (row.outcome.status, row.accepted, row.timing) == ("timeout", False, None) and row.outcome.seconds >= 1.5
    assert row.outcome.reason == "killed at the limit of 1.5 s, start and compilation included"


ENDS = ["os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"]


@pytest.mark.parametrize("leader", sampled(ENDS, ENDS[-1:]))
def test_what_a_process_started_is_killed_with_it_and_what_it_said_counts(judged, tmp_path, leader: str) -> None:
    """The child also holds the message open, and nobody waits for the child to close it."""
    child = "note(subprocess.Popen(['sleep', '600'], pass_fds=[plan['message']]).pid)\n"
    assert judged(forging(f"{child}copy(first, rows, timed, second)\ndone()\n{leader}")).accepted
    assert gone(json.loads((tmp_path / "noted").read_text()))


def test_a_child_that_left_the_group_keeps_nobody_waiting(judged) -> None:
    child = "subprocess.Popen(['sleep', '20'], pass_fds=[plan['message']], start_new_session=True)\n"
    found = judged(forging(f"{child}copy(first, rows, timed, second)\ndone()"))
    assert found.accepted and found.rows[0].outcome.seconds < 20


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_the_group_is_killed_when_the_evaluation_stops(judged, tmp_path: Path, monkeypatch, raised) -> None:
    wait = subprocess.Popen.wait

    def interrupted(process: subprocess.Popen, timeout: float | None = None) -> int:
        while timeout and process.poll() is None:
            if (tmp_path / "noted").exists():
                raise raised
            time.sleep(0.01)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(raised):
        judged(forging("note([os.getpid(), subprocess.Popen(['sleep', '600']).pid])\ntime.sleep(600)"))
    assert all(gone(pid) for pid in json.loads((tmp_path / "noted").read_text()))
