"""Terminal and file show progress, and lines that no terminal breaks inside a word."""

import ctypes

import pytest

from tl_attention.lab.measure import device
from tl_attention.lab.show import console
from tl_attention.lab.show.table import Table, lines


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    monkeypatch.setattr(console, "time", clock := Clock())
    return clock


def steps(clock: Clock, seconds: list[float]) -> None:
    with console.ProgressBar() as progress:
        progress.phase("compile", len(seconds))
        for number, duration in enumerate(seconds, 1):
            clock.now += duration
            progress.advance(f"seed {number}\x1b")


def test_in_a_file_each_step_that_takes_its_time_is_a_line(clock, capsys) -> None:
    steps(clock, [7.0, 7.4, 9.0])
    assert capsys.readouterr().err.splitlines() == [
        "compile: 3 steps",
        "  step 1 of 3: seed 1\\x1b, 7 s",
        "  step 2 of 3: seed 2\\x1b, 14 s",
        "  step 3 of 3: seed 3\\x1b, 23 s",
    ]


def test_in_a_file_quick_steps_share_a_line_every_few_seconds_and_the_last_has_one(clock, capsys) -> None:
    steps(clock, [0.5] * 9)
    _, *lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["  step 4 of 9", "  step 8 of 9", "  step 9 of 9"]


def test_in_a_file_a_phase_of_one_step_is_one_line(clock, capsys) -> None:
    steps(clock, [7.0])
    assert capsys.readouterr().err == "compile: 1 step\n"


def test_in_a_file_a_line_says_which_kernel_is_next(capsys) -> None:
    said = []
    with console.ProgressBar() as progress:
        for name in progress.each("predict", ["seed", "best\x1b"], str):
            said.append((name, capsys.readouterr().err))
    assert said == [("seed", "predict: kernel 1 of 2: seed\n"), ("best\x1b", "predict: kernel 2 of 2: best\\x1b\n")]
    assert not capsys.readouterr().err


def test_sentences_are_whole_in_a_file(capsys) -> None:
    console.Output().say("word " * 40, "two\n    lines")
    assert capsys.readouterr().out.splitlines() == ["word " * 40, "two", "    lines"]


def test_a_heading_stands_in_two_lines_where_that_saves_room() -> None:
    assert lines(("schedule", "max error / budget"), [("seed", "0.30"), ("best", "")]) == [
        "          max error",
        "schedule  / budget",
        "--------  ---------",
        "seed      0.30",
        "best",
    ]


def test_wide_characters_take_two_columns() -> None:
    assert lines(("a", "b"), [("表", "x"), ("ab", "y")])[-2:] == ["表  x", "ab  y"]


def test_a_column_that_does_not_fit_lets_a_narrower_one_behind_it_through() -> None:
    table = ("name", "wide", "narrow", "empty"), [("seed", "w" * 30, "n", "")]
    assert Table("", *table, (0, 1, 2, 3)).fitting(20) == ([0, 2], [1])
    assert Table("", *table, (0, 2, 1, 3)).fitting(100) == ([0, 1, 2], [])


@pytest.mark.parametrize(
    "init, count, found",
    [
        (
            0,
            2,
            (
                ("GPU-00010101-0101-0101-0101-010101010101", "NVIDIA H0", (9, 0), 114),
                ("GPU-01010101-0101-0101-0101-010101010101", "NVIDIA H1", (9, 0), 114),
            ),
        ),
        (0, 0, ()),
        (100, 0, ()),
    ],
)
def test_the_driver_tells_which_gpus_it_shows(init, count, found, monkeypatch) -> None:
    class Driver:
        def cuInit(self, flags: int) -> int:
            return init

        def cuDeviceGetCount(self, pointer) -> int:
            pointer._obj.value = count
            return 0

        def cuDeviceGet(self, pointer, number: int) -> int:
            pointer._obj.value = number
            return 0

        def cuDeviceGetUuid_v2(self, uuid, gpu) -> int:
            uuid[:] = bytes([gpu.value, *[1] * 15])
            return 0

        def cuDeviceGetName(self, name, length: int, gpu) -> int:
            name.value = f"NVIDIA H{gpu.value}".encode()
            return 0

        def cuDeviceGetAttribute(self, pointer, attribute: int, gpu) -> int:
            pointer._obj.value = {75: 9, 76: 0, 16: 114}[attribute]
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    assert device.visible_gpus() == found


def test_without_a_driver_there_is_no_gpu(monkeypatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert device.visible_gpus() == ()
