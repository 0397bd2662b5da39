"""The parent's end of a submission's process, with programs in the place of worker.py: how it is heard and ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tl_attention.leaderboard.messages import MAX_BYTES, Ended
from tl_attention.leaderboard.process import LOG_BYTES, SubmissionProcess

PREAMBLE = """\
import json, os, signal, socket, subprocess, sys, time
plan = json.loads(sys.argv[1])
channel = socket.socket(fileno=plan["channel"])
def tell(**values):
    channel.send(json.dumps(values).encode())
"""
# Only where a program never ends by itself; else the limit is far away, since the machine may be busy.
FAR_S = 300.0


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., SubmissionProcess]:
    def run(program: str, timeout_s: float = FAR_S) -> SubmissionProcess:
        (tmp_path / "worker.py").write_text(PREAMBLE + program)
        return SubmissionProcess(tmp_path, {"line": None}, timeout_s)

    return run


def gone(pid: int) -> bool:
    """Whether the process ends; one that was killed may stay listed as a zombie until it is reaped."""
    state = Path("/proc", str(pid), "stat")
    deadline = time.monotonic() + FAR_S
    while time.monotonic() < deadline:
        try:
            if state.read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def test_messages_arrive_whole_and_in_order_and_the_process_waits_to_be_told_to_go_on(start) -> None:
    program = "tell(n=1, plan=plan)\ntell(n=2)\ntell(told=channel.recv(1).decode())\ntime.sleep(600)"
    with start(program) as process:
        first = json.loads(process.receive())
        assert first["n"] == 1 and first["plan"]["line"] is None
        assert json.loads(process.receive()) == {"n": 2}
        process.proceed()
        assert json.loads(process.receive()) == {"told": "1"}


@pytest.mark.parametrize(
    "program, reason",
    [
        ("print('about to leave', file=sys.stderr)\nos._exit(3)", "exit code 3: about to leave"),
        ("os._exit(0)", "exit code 0"),
        ("channel.close()\nprint('check: pass')", "exit code 0: check: pass"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 2)", f"killed by signal {34 + 2}"),
    ],
)
def test_a_process_that_leaves_is_a_crash_with_its_last_words(start, program, reason) -> None:
    with start(program) as process, pytest.raises(Ended) as ended:
        process.receive()
    assert (ended.value.status, str(ended.value)) == ("crash", reason)


def test_what_was_told_before_the_end_is_heard(start) -> None:
    with start("tell(n=1)\nos._exit(0)") as process:
        while not process._exit_status():
            time.sleep(0.01)
        assert json.loads(process.receive()) == {"n": 1}
        process.proceed()
        with pytest.raises(Ended, match="exit code 0"):
            process.receive()


@pytest.mark.parametrize("last_words", ["", "tell(n=2)\n"])
def test_a_process_that_leaves_without_reading_is_a_crash_and_what_it_told_is_heard(start, last_words) -> None:
    program = f"import select\ntell(n=1)\nselect.select([channel], [], [])\n{last_words}os._exit(3)"
    with start(program) as process:
        assert json.loads(process.receive()) == {"n": 1}
        process.proceed()
        while not process._exit_status():
            time.sleep(0.01)
        if last_words:
            assert json.loads(process.receive()) == {"n": 2}
        with pytest.raises(Ended, match="^exit code 3$") as ended:
            process.receive()
    assert ended.value.status == "crash"


def test_a_message_has_a_limit(start) -> None:
    with start(f"channel.send(b'x' * {MAX_BYTES})\nchannel.send(b'x' * {MAX_BYTES + 1})") as process:
        assert process.receive() == b"x" * MAX_BYTES
        with pytest.raises(Ended, match="over 65,536 bytes") as ended:
            process.receive()
    assert ended.value.status == "error"


@pytest.mark.parametrize("program", ["time.sleep(600)", "channel.close()\ntime.sleep(600)", "while True: pass"])
def test_a_process_that_says_nothing_meets_the_limit(start, program) -> None:
    with start(program, timeout_s=1.5) as process:
        with pytest.raises(Ended, match="killed at the limit of 1.5 s") as ended:
            process.receive()
        process.end()
        assert process.seconds >= 1.5 and gone(process._process.pid)
    assert ended.value.status == "timeout"


@pytest.mark.parametrize("leader_lives", [True, False])
def test_the_end_kills_what_the_process_started(start, leader_lives) -> None:
    child = "child = subprocess.Popen(['sleep', '600'])\ntell(child=child.pid)\n"
    with start(child + ("child.wait()" if leader_lives else "os._exit(0)")) as process:
        pid = json.loads(process.receive())["child"]
        while not leader_lives and not process._exit_status():
            time.sleep(0.01)
        assert Path("/proc", str(pid)).exists()
    assert gone(pid)


def test_it_has_a_session_of_its_own_and_nothing_to_read(start) -> None:
    with start("tell(session=os.getsid(0), group=os.getpgrp(), read=sys.stdin.read(), cwd=os.getcwd())") as process:
        told = json.loads(process.receive())
        assert told == {"session": process._process.pid, "group": process._process.pid, "read": "", "cwd": told["cwd"]}
    assert Path(told["cwd"]).name != Path.cwd().name


def test_only_the_end_of_the_log_is_kept(start) -> None:
    with start("print('x' * 10**7)\nos.write(2, b'\\xff last')\ntell()") as process:
        process.receive()
        assert process.log.endswith("x\n\N{REPLACEMENT CHARACTER} last")
        assert len(process.log.encode()) <= LOG_BYTES + 2


def test_what_the_parent_does_meanwhile_is_left_out_of_the_time(start) -> None:
    began = time.monotonic()
    with start("time.sleep(600)") as process:
        with process.paused():
            time.sleep(0.5)
        assert process.seconds <= time.monotonic() - began - 0.5
