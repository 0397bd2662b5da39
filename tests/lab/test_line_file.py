"""Many processes append to one file: every whole line stays, whatever happens to the other lines."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT

from tl_attention.errors import InputError
from tl_attention.lab.measure.results_file import ResultsFile

WRITERS, LINES = 10, 1000
# Appends `count` lines that name their writer, once the file of the start exists.
WRITER = """
import sys, time
from pathlib import Path
from tl_attention.lab.measure.results_file import ResultsFile
path, start, name, count = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
lines = ResultsFile(path)
print("ready", flush=True)
while not start.exists():
    time.sleep(0.01)
for number in range(count):
    lines.append_json('{"writer": "%s", "number": %d, "padding": "%s"}' % (name, number, "." * 500), of=name)
"""
# The same on a disk that is full again and again: the next line fits, or half of it, or nothing.
ON_A_FULL_DISK = (
    WRITER.replace(
        "import sys, time", "import random, resource, sys, time\nfrom tl_attention.errors import InputError"
    ).replace(
        "    lines.append_json(",
        """    room = (path.stat().st_size if path.exists() else 0) + random.randrange(1200)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
      lines.append_json(""",
    )
    + """    except InputError as error:
        assert "File too large" in str(error)
        print(number)
"""
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yields a folder, in memory where possible: 10,000 lines are 10,000 waits for a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def written(path: Path) -> dict[str, list[int]]:
    """Returns the numbers of each writer's whole lines, in the order of the file; a broken line counts for nobody."""
    found: dict[str, list[int]] = {}
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            found.setdefault("broken", []).append(0)
        else:
            found.setdefault(entry["writer"], []).append(entry["number"])
    return found


def test_of_ten_writers_one_is_killed_and_one_ends_without_a_line_and_every_line_of_the_others_is_there(folder) -> None:
    path, begin = folder / "lines.jsonl", folder / "begin"
    idle = start(WRITER, path, begin, "idle", 0)
    writers = {f"writer {n}": start(WRITER, path, begin, f"writer {n}", LINES) for n in range(WRITERS - 2)}
    killed = start(WRITER, path, begin, "killed", 10**9)
    begin.touch()
    deadline = time.monotonic() + 300
    while not path.exists() or path.read_text().count('"killed"') < 20:
        assert killed.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert [process.wait(timeout=300) for process in (idle, *writers.values())] == [0] * (WRITERS - 1)
    assert killed.wait() == -signal.SIGKILL
    found = written(path)
    assert len(found.pop("broken", [])) <= 1, "at most the line that the killed one was writing"
    assert (numbers := found.pop("killed")) == list(range(len(numbers)))
    assert found == {name: list(range(LINES)) for name in writers}


def test_a_writer_on_a_full_disk_cuts_back_its_own_line_and_no_other(folder) -> None:
    path, begin = folder / "lines.jsonl", folder / "begin"
    full = start(ON_A_FULL_DISK, path, begin, "full", LINES)
    others = {name: start(WRITER, path, begin, name, LINES) for name in ("one", "two")}
    begin.touch()
    assert full.stdout is not None
    failed = [int(line) for line in full.stdout.read().splitlines()]
    assert [process.wait(timeout=300) for process in (full, *others.values())] == [0, 0, 0]
    assert LINES / 10 < len(failed) < LINES
    assert written(path) == {name: list(range(LINES)) for name in others} | {
        "full": [number for number in range(LINES) if number not in failed]
    }


def test_what_another_program_appended_without_the_lock_is_not_cut_back(tmp_path, monkeypatch) -> None:
    path = tmp_path / "lines.jsonl"
    lines = ResultsFile(path)
    lines.append_json("first", of="first")

    def fsync(descriptor: int) -> None:
        with path.open("ab") as foreign:
            foreign.write(b"foreign\n")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(InputError, match="the row of second cannot be written: Input/output error"):
        lines.append_json("second", of="second")
    assert path.read_bytes() == b"first\nsecond\nforeign\n"


def test_a_line_that_another_left_half_written_is_ended_first(tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = ResultsFile(path)
    lines.append_json("first", of="first")
    with path.open("ab") as killed:
        killed.write(b"ha")
    lines.append_json("second", of="second")
    assert path.read_bytes() == b"first\nha\nsecond\n"


def test_a_line_after_the_file_was_removed_makes_it_again(tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = ResultsFile(path)
    assert not path.exists(), "nobody has written"
    lines.append_json("gone", of="gone")
    path.unlink()
    lines.append_json("kept", of="kept")
    assert path.read_bytes() == b"kept\n"


def test_a_pipe_stays_open_between_lines_and_tells_when_its_reader_has_gone(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    lines = ResultsFile(pipe)
    lines.append_json("one", of="one")
    assert os.read(reader, 100) == b"one\n"
    with pytest.raises(BlockingIOError):
        os.read(reader, 100)
    os.close(reader)
    with pytest.raises(InputError, match="Broken pipe"):
        lines.append_json("two", of="two")
    assert pipe.exists()
