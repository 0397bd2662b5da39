"""Files that this process loads and runs are trusted only if nobody but this user and root can change them.

Whoever else owns such a file, or a folder above it, or may write there, could have any code run here. A seal does not
help: they could write that, too.
"""

from __future__ import annotations

import functools
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from shlex import quote

from tl_attention.errors import InputError

ALONE = 0o700
NOT_LOADED = "so nothing is loaded from there"
ELSEWHERE = "export TILELANG_CACHE_DIR=~/.cache/tl-attention"
# Linux has this limit too: more links are taken for a circle.
MOST_LINKS = 40


def check(path: Path) -> None:
    """Raises InputError if users other than this one and root own or may write to a path or any part of the way to it.

    The error has a command that helps. Every folder above it counts, every link on the way and what the link leads to.
    A folder above may be sticky and open to all, as /tmp is: what lies in it is looked at itself. What does not exist
    is not looked at.
    """
    for part, status, is_above in _way(Path.cwd() / path):
        is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        check_one(part, status, may_be_open=bool(is_sticky and is_above))


def check_one(part: str | Path, status: os.stat_result, may_be_open: bool = False) -> None:
    """Raises InputError if users other than this one and root own a file or folder, or may write to it.

    `found` is its stat; others may write to it if `may_be_open`.
    """
    if status.st_uid not in (0, os.geteuid()):
        raise InputError(
            f"{part}: it belongs to uid {status.st_uid}, neither this user nor root, {NOT_LOADED}: {ELSEWHERE}"
        )
    if _others_write(status) and not may_be_open:
        raise InputError(f"{part}: others may write to it, {NOT_LOADED}: chmod go-w {quote(str(part))}")


def make_private(folder: Path) -> None:
    """Makes the folder, and missing folders above it, for this user alone under any umask.

    Raises OSError, and InputError as `check` does.
    """
    check(folder)
    missing = list(takewhile(lambda part: not part.exists(), (folder, *folder.parents)))
    for part in reversed(missing):
        part.mkdir(ALONE, exist_ok=True)
    # Where anybody may make a folder, in /tmp for one, another user may have been first.
    check(folder)


def check_private(folder: Path) -> None:
    """Raises InputError where the folder grants its group or other users any permission.

    They reach files in it that a program left open to all.
    """
    if folder.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(f"{folder}: others may enter it, {NOT_LOADED}: rm -r {quote(str(folder))}")


def _way(path: Path, is_above: bool = False, links: int = 0) -> Iterator[tuple[str, os.stat_result, bool]]:
    """Yields (path, lstat, whether the way goes on) of each folder, link and file that leads to, or is, a file."""
    # `is_above`: whether the way goes on from the path itself. `links`: how many links led to this path.
    for part in (*reversed(path.parents), path):
        try:
            status = os.lstat(str(part))
            target = os.readlink(part) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return
        goes_on = is_above or part != path
        yield str(part), status, goes_on or target is not None
        if target is not None and links < MOST_LINKS:
            yield from _way(part.parent / target, goes_on, links + 1)


def _others_write(status: os.stat_result) -> bool:
    if stat.S_ISLNK(status.st_mode):
        return False
    by_group = status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    return bool(by_group or status.st_mode & stat.S_IWOTH)


@functools.cache
def _is_own_group(group: int) -> bool:
    """Says whether the group has the user's name and nobody else in it, as many systems make a group for each user."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return entry.gr_name == user and set(entry.gr_mem) <= {user}
