"""A bad schedule file gives one line on stderr with file, line, key, what was found and expected, and exit code 2."""

import os
import threading
import time

import pytest

from tl_attention.schedule.schedule import EXAMPLE_LABEL

# What stands instead of "256" in the seed schedule, and what the message says. Others are in yaml_mistakes.yaml.
LONG = {
    "deep list": ("[" * 20_000, ["nested deeper than 8"]),
    "deep mapping": ("{y: " * 10_000, ["nested deeper than 8"]),
    "5000 digits": ("9" * 5000, ["threads", "cannot read", "999..."]),
}


@pytest.mark.parametrize("name", LONG)
def test_a_value_without_an_end_is_told_in_one_line(name, error_of, changed_seed) -> None:
    value, words = LONG[name]
    path = changed_seed("256", value)
    message = error_of("check", path)
    assert message.startswith(f"{path}:6: ") and len(message) < 500
    assert [word for word in words if word not in message] == [], message


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["run", "seed", "--shape", f"{'9' * 5000},1,1,128"], "is not a shape"),
        (["check", EXAMPLE_LABEL.replace("n2", f"n{'9' * 5000}")], "is not a schedule's label"),
    ],
    ids=["shape", "label"],
)
def test_a_number_without_an_end_is_told_in_one_line(arguments, words, error_of) -> None:
    assert words in error_of(*arguments)


@pytest.mark.parametrize(
    "data, words",
    [
        (b"\x7fELF\x02\x01\x01\x00\xff\xfe", "1: not a text file: byte 0xff is not UTF-8"),
        ("block_M: 128".encode("utf-16"), "1: not a text file"),
        (b" \n\n", " the file is empty"),
    ],
)
def test_a_file_that_is_no_schedule_is_told_by_every_command(data, words, error_of, tmp_path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(data)
    for command in ("check", "list", "explain", "run", "submit"):
        assert error_of(command, path).startswith(f"{path}:{words}")


def test_a_file_of_100_megabytes_is_refused_without_reading_it(error_of, tmp_path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    started = time.perf_counter()
    assert "larger than 64 KiB" in error_of("check", path)
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize("command", ["run", "submit"])
def test_what_cannot_run_is_refused_with_the_reason_that_check_gives(command, error_of, changed_seed) -> None:
    path = changed_seed("num_stages: 2", "num_stages: 4")
    assert error_of(command, path) == error_of("check", path)


def test_a_pipe_is_read_where_it_has_a_writer_and_not_waited_for_where_it_has_none(cli, error_of, tmp_path, seed_path):
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    assert error_of("check", pipe) == f"{pipe}: a pipe or device with nothing in it, expected a file"
    write_end = os.open(pipe, os.O_RDWR)
    writer = threading.Timer(0.3, lambda: (os.write(write_end, seed_path.read_bytes()), os.close(write_end)))
    writer.start()
    assert cli("check", pipe).exit_code == 0
    writer.join()
