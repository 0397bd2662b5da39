"""A submission's process, with programs in the place of worker.py: how it is heard, and how it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tl_attention.leaderboard.process import LOG_BYTES, MESSAGE_BYTES, Message, one_line, read_message, run
from tl_attention.leaderboard.results import Outcome
from tl_attention.leaderboard.stop_rule import MAX_REPEATS

PREAMBLE = """\
import json, os, signal, subprocess, sys, time
plan = json.loads(sys.argv[1])
def say(data):
    os.write(plan["message"], data)
def note(value):
    with open("note.part", "w") as file:
        json.dump(value, file)
    os.rename("note.part", "note")
"""
DONE = 'say(b\'{"error": ""}\')\n'
# Only where a program never ends by itself is the limit near: the machine may be busy.
FAR_S = 300.0
TIMED = {"error": "", "kept_mib": None, "samples_ms": [1.0, 2, 3.5], "elapsed_s": 0.1}


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., tuple[Outcome, Message]]:
    def start(program: str, timeout_s: float = FAR_S) -> tuple[Outcome, Message]:
        (tmp_path / "worker.py").write_text(PREAMBLE + program)
        return run(tmp_path, {"line": None}, timeout_s)

    return start


def gone(pid: int) -> bool:
    """Whether the process ends; one that was killed may stay listed as a zombie until it is reaped."""
    deadline = time.monotonic() + FAR_S
    while time.monotonic() < deadline:
        try:
            if Path("/proc", str(pid), "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    "program, reason",
    [
        ("print('about to leave', file=sys.stderr)\nos._exit(3)", "exit code 3: about to leave"),
        ("os._exit(0)", "exit code 0"),
        ("os.close(plan['message'])\nprint('check: pass')", "exit code 0: check: pass"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "exit code -9"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 2)", "exit code -36"),
        ("print('\\x1b[31m')", "exit code 0: \\x1b[31m"),
    ],
)
def test_a_process_that_leaves_without_a_message_is_a_crash_with_its_last_words(ran, program, reason) -> None:
    outcome, _ = ran(program)
    assert (outcome.status, outcome.reason) == ("crash", reason)


@pytest.mark.parametrize(
    "program", ["time.sleep(600)", DONE + "time.sleep(600)", "os.close(plan['message'])\nwhile True: pass"]
)
def test_a_process_that_never_ends_meets_its_limit(ran, tmp_path: Path, program: str) -> None:
    outcome, _ = ran(program, timeout_s=1.5)
    assert outcome.status == "timeout" and outcome.seconds >= 1.5
    assert outcome.reason == "killed at the limit of 1.5 s, start and compilation included"


@pytest.mark.parametrize("leader", ["", "os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_the_process_started_is_killed_with_it(ran, tmp_path: Path, leader: str) -> None:
    """The child also holds the message open: nobody waits for it to close that."""
    child = "child = subprocess.Popen(['sleep', '600'], pass_fds=[plan['message']])\nnote(child.pid)\n"
    assert ran(child + DONE + leader)[0].status == "pass"
    assert gone(json.loads((tmp_path / "note").read_text()))


def test_a_child_that_left_the_group_keeps_nobody_waiting(ran, tmp_path: Path) -> None:
    child = "subprocess.Popen(['sleep', '20'], pass_fds=[plan['message']], start_new_session=True)\n"
    outcome, _ = ran(f"{child}{DONE}")
    assert outcome.status == "pass" and outcome.seconds < 20


@pytest.mark.parametrize("raised", [KeyboardInterrupt, RuntimeError])
def test_the_group_is_killed_when_the_judge_stops(ran, tmp_path: Path, monkeypatch, raised) -> None:
    def interrupted(_: float) -> None:
        if (tmp_path / "note").exists():
            raise raised

    monkeypatch.setattr("tl_attention.leaderboard.process.time.sleep", interrupted)
    with pytest.raises(raised):
        ran("note([os.getpid(), subprocess.Popen(['sleep', '600']).pid])\ntime.sleep(600)")
    monkeypatch.undo()
    assert all(gone(pid) for pid in json.loads((tmp_path / "note").read_text()))


def test_it_has_a_session_of_its_own_and_nothing_to_read(ran, tmp_path: Path) -> None:
    program = "note([os.getsid(0) == os.getpgrp() == os.getpid(), sys.stdin.read(), os.getcwd(), plan['line']])\n"
    assert ran(program + DONE)[0].status == "pass"
    assert json.loads((tmp_path / "note").read_text()) == [True, "", str(tmp_path), None]


def test_only_the_end_of_the_log_is_kept(ran) -> None:
    log = ran("print('x' * 10**7, flush=True)\nos.write(2, b'\\xff last')\n" + DONE)[0].log
    assert log.endswith("x\n\N{REPLACEMENT CHARACTER} last") and len(log.encode()) <= LOG_BYTES + 2


def test_messages_are_read_and_the_longest_fits(ran) -> None:
    longest = TIMED | {"samples_ms": [1.2345678901234567e-300] * MAX_REPEATS}
    for values in (TIMED, longest):
        assert len(json.dumps(values)) < MESSAGE_BYTES
        outcome, message = ran(f"say({json.dumps(values).encode()!r})")
        assert (outcome.status, outcome.reason) == ("pass", "")
        assert (message.kept_mib, message.elapsed_s, list(message.samples_ms)) == (None, 0.1, values["samples_ms"])
    told = json.dumps({"error": "ValueError: a\nb \x1b[31m"}).encode()
    assert ran(f"say({told!r})")[0].reason == "ValueError: a b \\x1b[31m"


def changed(**values: object) -> bytes:
    return json.dumps(TIMED | values).encode()


@pytest.mark.parametrize(
    "data",
    [
        *b'{ null 1 "error" [] \xff\xfe \x80\x04K\x01.'.split(),
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b"{}",
        b" " * (MESSAGE_BYTES + 1),
        changed() + b"{}",
        changed() + b" " * MESSAGE_BYTES,
        changed(accepted=True),
        changed(error=1),
        changed(error=None),
        changed(error="x" * 301),
        changed(kept_mib=float("nan")),
        changed(kept_mib="0"),
        changed(elapsed_s=-1.0),
        changed(samples_ms=1.0),
        changed(samples_ms=[float("inf")]),
        changed(samples_ms=[1.0] * (MAX_REPEATS + 1)),
        *(changed().replace(b"3.5", text) for text in (b"1e999", b"1" * 5000, b"true", b'"3.5"', b"0", b"-1", b"[1]")),
    ],
    ids=lambda data: data[-40:].decode(errors="replace"),
)
def test_anything_else_is_no_message(data: bytes) -> None:
    message = read_message(data)
    assert message == Message(error=message.error) and message.error.isprintable() and len(message.error) <= 300
    assert message.error.startswith("no valid message from the process: ")


def test_a_message_over_the_bound_is_none(ran) -> None:
    outcome, _ = ran(f"say(b' ' * {100 * MESSAGE_BYTES})\n" + DONE)
    assert (outcome.status, outcome.reason) == ("error", "no valid message from the process: over 65,536 bytes")


def test_text_is_made_one_printable_line() -> None:
    assert one_line("a\n b\u2028c\x00\x9b\u00e9") == "a b c\\x00\\x9b\u00e9"
    assert len(one_line("x" * 1000)) == 300
