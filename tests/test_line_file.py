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

from tl_attention.measure.results_file import LineFile

ROOT = Path(__file__).parents[1]
WRITERS, LINES = 10, 1000
# Appends `count` lines that name their writer, once the file of the start exists.
WRITER = """
import sys, time
from pathlib import Path
from tl_attention.measure.results_file import LineFile
path, start, name, count = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
lines = LineFile(path)
print("ready", flush=True)
while not start.exists():
    time.sleep(0.01)
for number in range(count):
    lines.append(b'{"writer": "%s", "number": %d, "padding": "%s"}' % (name.encode(), number, b"." * 500))
lines.close()
"""
# The same on a disk that is full again and again: the next line fits, or half of it, or nothing.
ON_A_FULL_DISK = (
    WRITER.replace("import sys, time", "import random, resource, sys, time")
    .replace(
        "    lines.append(",
        """    room = path.stat().st_size + random.randrange(1200)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    try:
      lines.append(""",
    )
    .replace(
        "\nlines.close()",
        """
    except OSError as error:
        print(error.strerror, number)
lines.close()""",
    )
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
    # The one without a line makes the file, so it is the one that would remove it.
    idle = start(WRITER, path, begin, "idle", 0)
    writers = {f"writer {n}": start(WRITER, path, begin, f"writer {n}", LINES) for n in range(WRITERS - 2)}
    killed = start(WRITER, path, begin, "killed", 10**9)
    begin.touch()
    deadline = time.monotonic() + 300
    while path.read_text().count('"killed"') < 20:
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
    failed = [int(line.removeprefix("File too large ")) for line in full.stdout.read().splitlines()]
    assert [process.wait(timeout=300) for process in (full, *others.values())] == [0, 0, 0]
    assert LINES / 10 < len(failed) < LINES
    assert written(path) == {name: list(range(LINES)) for name in others} | {
        "full": [number for number in range(LINES) if number not in failed]
    }


def test_what_another_program_appended_without_the_lock_is_not_cut_back(tmp_path, monkeypatch) -> None:
    path = tmp_path / "lines.jsonl"
    lines = LineFile(path)
    lines.append(b"first")

    def fsync(descriptor: int) -> None:
        with path.open("ab") as foreign:
            foreign.write(b"foreign\n")
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        lines.append(b"second")
    assert path.read_bytes() == b"first\nsecond\nforeign\n"


def test_a_line_that_another_left_half_written_while_the_file_was_open_is_ended_first(tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = LineFile(path)
    lines.append(b"first")
    with path.open("ab") as killed:
        killed.write(b"ha")
    lines.append(b"second")
    assert path.read_bytes() == b"first\nha\nsecond\n"


def test_the_first_of_two_that_ends_without_a_line_leaves_the_others(tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    first, second = LineFile(path), LineFile(path)
    second.append(b"kept")
    first.close()
    assert path.read_bytes() == b"kept\n"


def test_a_line_after_the_file_was_removed_makes_it_again(tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    first, second = LineFile(path), LineFile(path)
    first.close()
    assert not path.exists(), "it made the file, and nobody had written"
    second.append(b"kept")
    second.close()
    assert path.read_bytes() == b"kept\n"


def test_an_empty_file_that_took_the_place_of_mine_is_left(tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = LineFile(path)
    path.unlink()
    path.touch()
    lines.close()
    assert path.exists()


def test_a_pipe_is_written_to_and_tells_when_its_reader_has_gone(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    lines = LineFile(pipe)
    lines.append(b"one")
    assert os.read(reader, 100) == b"one\n"
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        lines.append(b"two")
    lines.close()
    assert pipe.exists()
