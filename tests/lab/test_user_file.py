"""A user may name what is no file, or has no end: one line says so at once. A full disk costs nothing."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path

import pytest
from conftest import ROOT

from tl_attention.errors import InputError
from tl_attention.lab.files import user_file
from tl_attention.lab.files.kinds import MACHINE

SUBMISSION = ROOT / "leaderboard_submit.py"
NEVER_ENDS = "/dev/zero"
READERS = {
    "a schedule": (["check"], ".yaml", "larger than 64 KiB, which no schedule is"),
    "cells": (["compare"], ".yaml", "larger than 64 KiB, which no schedule is"),
    "a record": (["report"], ".jsonl", "larger than 64 MiB, which no record is"),
    "a ladder's record": (["report", "--ladder", "worklog"], ".jsonl", "larger than 64 MiB, which no record is"),
    "test lines": (["submit", "--evaluate", SUBMISSION, "--lines"], ".txt", "larger than 64 MiB, which no record is"),
    "a submission": (["submit", "--check"], ".py", "larger than 64 MiB, which no submission is"),
}


@pytest.mark.parametrize("name", READERS)
def test_what_never_ends_and_a_pipe_that_nobody_writes_to_are_told_at_once(name, error_of, tmp_path):
    command, suffix, words = READERS[name]
    for file, make in (("endless", lambda path: path.symlink_to(NEVER_ENDS)), ("pipe", os.mkfifo)):
        path = tmp_path / f"{file}{suffix}"
        make(path)
        error = error_of(*command, path)
        assert error.startswith(str(path)) and (file == "pipe" or error == f"{path}: {words}")


OLD, NEW = (f"# The numbers of a {card} for `tl-attention predict`: {'x' * 2000}" for card in ("card", "GPU"))


@pytest.mark.parametrize("before", ["new", "there"])
def test_a_file_is_written_whole_or_not_at_all(before, tmp_path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    if before == "there":
        file.write_text(OLD)
        file.chmod(0o751)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        with pytest.raises(InputError, match=f"^{link}: cannot be written: File too large$"):
            user_file.write(link, NEW, MACHINE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert {path.name for path in tmp_path.iterdir()} == ({"link", "file"} if before == "there" else {"link"})
    assert before == "new" or file.read_text() == OLD
    user_file.write(link, NEW, MACHINE)
    assert file.read_text() == NEW and link.is_symlink()
    assert before == "new" or file.stat().st_mode & 0o777 == 0o751


def test_what_can_be_written_is_told_ahead_and_nothing_is_left(tmp_path) -> None:
    """The check says before what `write` says of a file. A folder is made with its file, below one that is there."""
    (tmp_path / "file").write_text(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    os.mkfifo(tmp_path / "pipe")
    for name in ("file", "link", "pipe", "a/file"):
        user_file.check_writable(tmp_path / name, MACHINE)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "pipe"}
    assert (tmp_path / "file").read_text() == OLD
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "file" / "other", "Not a directory"),
        (tmp_path / ("x" * 250), "File name too long"),
        (tmp_path / "a" / "new" / "file", "No such file or directory"),
        (Path("/proc/none/file"), "No such file or directory"),
        (Path("/tl-attention-none/file"), "No such file or directory"),
        (Path("a\0b"), "no file has such a name"),
    ):
        for tried in (user_file.check_writable, lambda path, kind: user_file.write(path, "", kind)):
            with pytest.raises(InputError, match=f"^{path}: cannot be written: {reason}$"):
                tried(path, MACHINE)
    user_file.write(tmp_path / "a" / "file", NEW, MACHINE)
    assert (tmp_path / "a" / "file").read_text() == NEW


def test_a_missing_permission_is_told_ahead(tmp_path, monkeypatch) -> None:
    """Root may write everywhere, so that the system is made to refuse."""

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(Path, "touch", refuse)
    for name in ("pipe", "file"):
        with pytest.raises(InputError, match=f"^{tmp_path / name}: cannot be written: Permission denied$"):
            user_file.check_writable(tmp_path / name, MACHINE)


def test_a_device_is_written_to() -> None:
    user_file.write(Path(os.devnull), "x", MACHINE)
    with pytest.raises(InputError, match="^/dev/full: cannot be written: No space left on device$"):
        user_file.write(Path("/dev/full"), "x", MACHINE)
