"""Finished kernels lie on disk: tests check which file is taken for one, and what a file or folder may break."""

from __future__ import annotations

import os
import resource
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
from pool_jobs import failed_reads
from stand_in import KERNEL
from tiers import sampled

from tl_attention.codeproof.verdict import Verdict
from tl_attention.compiler import store
from tl_attention.compiler.store import Finished, keep, read
from tl_attention.errors import InputError

KERNELS = {
    "proved": KERNEL,
    "without a Program": replace(KERNEL, verdict=None),
    "with nothing to prove": replace(KERNEL, verdict=Verdict((), (), "")),
    "empty": Finished(b"", "", "", None),
}


@pytest.fixture
def file(tmp_path) -> Path:
    """Makes the one file of a store."""
    file = tmp_path / "nvcc/tl-attention/0.kernel"
    keep(file, KERNEL)
    assert [*file.parent.iterdir()] == [file]
    return file


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_kept_is_read_and_takes_the_place_of_what_was_there(name, file) -> None:
    keep(file, KERNELS[name])
    assert read(file) == KERNELS[name]
    assert file.read_bytes().startswith(KERNELS[name].cubin)
    assert [*file.parent.iterdir()] == [file]


BAD = {
    "empty": lambda good: b"",
    "a line": lambda good: b"\n",
    "the seal alone": lambda good: good[-store.SEAL :],
    "half": lambda good: good[: len(good) // 2],
    "without the last byte": lambda good: good[:-1],
    "without the first byte": lambda good: good[1:],
    "one byte more": lambda good: good + b"\n",
    "zeros from the middle on, as after a crash": lambda good: good[: len(good) // 2].ljust(len(good), b"\0"),
    "a bit of the machine code": lambda good: flipped(good, 1000),
    "a bit of the source": lambda good: flipped(good, good.index(b"device")),
    "a bit of the verdict": lambda good: flipped(good, good.index(b"numbers")),
    "a bit of the length": lambda good: flipped(good, len(good) - store.SEAL - 1),
    "a bit of the seal": lambda good: flipped(good, len(good) - 1),
    "machine code alone": lambda good: KERNEL.cubin,
}


def flipped(text: bytes, place: int) -> bytes:
    return text[:place] + bytes([text[place] ^ 1]) + text[place + 1 :]


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_as_it_was_written_is_absent_and_replaced(name, file) -> None:
    good = file.read_bytes()
    file.write_bytes(BAD[name](good))
    assert read(file) is None
    keep(file, KERNEL)
    assert file.read_bytes() == good and read(file) == KERNEL


def test_the_file_of_another_kernel_is_not_believed(file) -> None:
    other = file.with_name("1.kernel")
    shutil.copy(file, other)
    assert read(other) is None


@pytest.mark.parametrize("place", ["below a file", "a folder"])
def test_where_nothing_can_be_kept_nothing_is_left(place, tmp_path) -> None:
    if place == "a folder":
        file = tmp_path / "0.kernel"
        (file / "inside").mkdir(parents=True)
    else:
        (tmp_path / "a file").write_text("")
        file = tmp_path / "a file/tl-attention/0.kernel"
    before = {*tmp_path.rglob("*")}
    keep(file, KERNEL)
    assert read(file) is None and {*tmp_path.rglob("*")} == before


def test_a_full_disk_leaves_nothing_behind(file) -> None:
    file.unlink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        keep(file, KERNEL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not [*file.parent.iterdir()]


@pytest.mark.parametrize("count", sampled([2, 4], [2]))
def test_processes_that_keep_the_same_at_once_do_not_disturb_each_other(count, tmp_path) -> None:
    file = tmp_path / "0.kernel"
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        assert [*pool.map(failed_reads, [file] * count, [KERNEL] * count)] == [0] * count
    assert [*tmp_path.iterdir()] == [file]


NO_FILE = {
    "a pipe": lambda place, good: os.mkfifo(place),
    "a link to a device that never ends": lambda place, good: place.symlink_to("/dev/zero"),
    "a link to the kernel": lambda place, good: place.symlink_to(good),
    "a huge file": lambda place, good: (place.touch(), os.truncate(place, 2**40)),
}


@pytest.mark.parametrize("name", NO_FILE)
def test_what_is_no_file_of_a_sane_size_is_absent_at_once_and_replaced(name, file) -> None:
    good = file.rename(file.with_name("good"))
    NO_FILE[name](file, good)
    assert read(file) is None
    keep(file, KERNEL)
    assert read(file) == KERNEL and not file.is_symlink()


def test_a_kernel_that_others_may_write_to_is_refused(file) -> None:
    file.chmod(0o606)
    with pytest.raises(InputError, match=f"^{file}: others may write to it, .*: chmod go-w {file}$"):
        read(file)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_what_is_made_is_this_users_alone_whatever_the_umask_is(umask, tmp_path) -> None:
    file = tmp_path / "cache/nvcc/tl-attention/0.kernel"
    before = os.umask(umask)
    try:
        keep(file, KERNEL)
    finally:
        os.umask(before)
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "cache").rglob("*")} == {
        "nvcc": 0o700,
        "tl-attention": 0o700,
        "0.kernel": 0o600,
    }
