"""A kernel on disk is trusted only from some owners: another user's kernel is neither loaded nor replaced."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tl_attention.compiler import store, toolchain, trust
from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.named import resolve

OTHER = 12345


@pytest.fixture
def file(tmp_path) -> Path:
    """Makes a file in a folder in a folder, all this user's."""
    file = tmp_path / "above/folder/file"
    file.parent.mkdir(parents=True)
    file.write_text("")
    for path in (file, file.parent, file.parent.parent):
        path.chmod(0o755)
    return file


def link(place: Path) -> None:
    """Moves a file or folder, and puts in its place a link, through another link, to where it is now."""
    moved = place.rename(place.with_name("moved"))
    place.with_name("between").symlink_to(moved)
    place.symlink_to("./x/../between")
    (place.parent / "x").mkdir(mode=0o700)


GOOD: dict[str, Callable[[Path], object]] = {
    "as it is": lambda file: None,
    "all may read it": lambda file: file.chmod(0o444),
    "a sticky folder above": lambda file: file.parents[1].chmod(0o1777),
    "a link": link,
    "a link to a folder above": lambda file: link(file.parents[1]),
    "nothing there": lambda file: file.unlink(),
    "below a file": lambda file: (file.unlink(), file.parent.rmdir(), file.parent.write_text("")),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_this_user_and_root_alone_may_write_to_is_trusted(name, file) -> None:
    GOOD[name](file)
    trust.check(file)


# What is done, and the part of the path that is blamed for it.
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "the file": (lambda file: file.chmod(0o606), "above/folder/file"),
    "its folder": (lambda file: file.parent.chmod(0o777), "above/folder"),
    "a folder above": (lambda file: file.parents[1].chmod(0o757), "above"),
    "a sticky folder that may hold it": (lambda file: file.parent.chmod(0o1777), "above/folder"),
    "the folder of a link's target": (lambda file: (link(file), file.with_name("x").chmod(0o777)), "above/folder/x"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_others_may_write_to_is_refused_with_the_command_that_mends_it(name, file, tmp_path) -> None:
    change, blamed = BAD[name]
    change(file)
    # Of a sticky folder it is what lies in it that counts; there the folder itself is asked about.
    asked = file.parent if "sticky" in name else file
    with pytest.raises(InputError) as error:
        trust.check(asked)
    part = tmp_path / blamed
    assert str(error.value) == f"{part}: others may write to it, so nothing is loaded from there: chmod go-w {part}"
    part.chmod(part.stat().st_mode & ~0o022)
    trust.check(asked)


@pytest.mark.parametrize("name, members, trusted", [("me", [], True), ("me", ["you"], False), ("we", [], False)])
def test_a_group_may_write_where_it_is_the_users_own(name, members, trusted, file, monkeypatch) -> None:
    monkeypatch.setattr("pwd.getpwuid", lambda uid: type("User", (), {"pw_name": "me"}))
    monkeypatch.setattr("grp.getgrgid", lambda gid: type("Group", (), {"gr_name": name, "gr_mem": members}))
    monkeypatch.setattr(trust, "_is_own_group", trust._is_own_group.__wrapped__)
    file.chmod(0o664)
    assert (not trust._others_write(file.stat())) is trusted


@pytest.mark.parametrize("blamed", ["above", "above/folder", "above/folder/file"])
def test_what_another_user_owns_is_refused(blamed, file, tmp_path, monkeypatch) -> None:
    part = tmp_path / blamed
    real = os.lstat

    def lstat(path: str) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], OTHER, *found[5:])) if path == str(part) else found

    monkeypatch.setattr(os, "lstat", lstat)
    with pytest.raises(InputError) as error:
        trust.check(file)
    assert str(error.value) == (
        f"{part}: it belongs to uid {OTHER}, neither this user nor root, so nothing is loaded from there: "
        "export TILELANG_CACHE_DIR=~/.cache/tl-attention"
    )


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.fixture
def open_to_all(tmp_path, monkeypatch) -> Path:
    """Makes a folder to which all may write, and makes it the cache."""
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(folder))
    return folder


def test_no_kernel_is_read_compiled_or_kept_in_a_cache_that_all_may_write_to(open_to_all, monkeypatch) -> None:
    monkeypatch.setattr(store, "_bytes", lambda file: pytest.fail("it was read"))
    with pytest.raises(InputError, match=f"^{open_to_all}: others may write to it, .*: chmod go-w {open_to_all}$"):
        compile_kernel(resolve("seed").schedule, Variant(128, "float16"))
    with pytest.raises(InputError, match="others may write to it"), toolchain.use_nvcc():
        pytest.fail("TileLang was to load what is there")
    assert not [*open_to_all.iterdir()]
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    with toolchain.use_nvcc():
        pass
    assert not [*open_to_all.iterdir()], "switched off, it is neither asked nor used"


@pytest.mark.parametrize("command", [["warm", "seed"], ["run", "seed", "--shape", "1,1,128,128"]], ids=" ".join)
def test_the_command_line_tells_it_before_anything_is_compiled(command, open_to_all, error_of) -> None:
    assert error_of(*command, *["--output", open_to_all / "rows"] * (command[0] == "run")) == (
        f"{open_to_all}: others may write to it, so nothing is loaded from there: chmod go-w {open_to_all}"
    )
    assert not [*open_to_all.iterdir()]


def test_what_tilelang_keeps_is_in_a_folder_that_no_other_may_enter(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    with toolchain.use_nvcc() as nvcc:
        pass
    folder = tmp_path / "cache" / nvcc.cache / toolchain.FOLDER
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(InputError, match=f"^{folder}: others may enter it, .*: rm -r {folder}$"), toolchain.use_nvcc():
        pytest.fail("a program may have left files there that all may write to")
