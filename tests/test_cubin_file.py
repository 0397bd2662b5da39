"""The check of a file's cubin, on files that somebody else made: one line says what is wrong, nothing is written."""

from __future__ import annotations

import base64
import json
import lzma
import re
import tempfile
from pathlib import Path

import pytest
from submissions import COMMITTED

from tl_attention.leaderboard import cubin


def changed(folder: Path, **constants_: object) -> Path:
    """The committed file with other constants."""
    others = "".join(f"{name} = {value!r}\n" for name, value in constants_.items())
    path = folder / "changed.py"
    path.write_text(COMMITTED.read_text(encoding="utf-8") + others, encoding="utf-8")
    return path


def xz(text: bytes) -> str:
    return base64.b64encode(lzma.compress(text)).decode()


@pytest.mark.parametrize("out", ["../out.h", "{folder}/out.h", "a/../../out.h", "", "."])
def test_a_header_is_not_written_outside_of_its_folder(tmp_path, capsys, monkeypatch, out):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = changed(tmp_path, HEADERS_XZ=xz(json.dumps({out.format(folder=tmp_path): "int x;"}).encode()))
    assert cubin.main([str(path)]) == 2
    assert re.fullmatch(r"error: header '.*': leads out of the folder of the headers\n", capsys.readouterr().err)
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == ["changed.py"]


def test_a_header_that_cannot_be_written_is_one_clear_line(tmp_path, capsys):
    for names in (["a", "a/b"], ["x" * 300], ["\0"]):
        path = changed(tmp_path, HEADERS_XZ=xz(json.dumps(dict.fromkeys(names, "")).encode()))
        assert cubin.main([str(path)]) == 2
        assert re.fullmatch(r"error: header '.*': .+\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    "name, value",
    [
        ("HEADERS_XZ", 3),
        ("HEADERS_XZ", "no base64"),
        ("HEADERS_XZ", "\N{EURO SIGN}"),
        ("HEADERS_XZ", "AAAA"),
        ("HEADERS_XZ", ""),
        ("HEADERS_XZ", xz(b"{}")[:-24]),
        ("HEADERS_XZ", xz(b"[]")),
        ("HEADERS_XZ", xz(b"{")),
        ("HEADERS_XZ", xz(b'{"a": 1}')),
        ("HEADERS_XZ", xz(b"[" * 100_000)),
        ("HEADERS_XZ", xz(b'{"a": "\\ud800"}')),
        ("HEADERS_XZ", xz(bytes(cubin.MOST_UNPACKED + 1))),
        ("CUBIN_XZ", 3),
        ("CUBIN_XZ", "AAAA"),
        ("KERNEL_SOURCE", 3),
        ("NVRTC_OPTIONS", 3),
        ("NVRTC_OPTIONS", (3,)),
        ("NVRTC_OPTIONS", ("--time=out.csv",)),
    ],
)
def test_a_constant_that_holds_something_else_is_one_clear_line(tmp_path, capsys, name, value):
    path = changed(tmp_path, **{name: value})
    assert cubin.main([str(path)]) == 2
    assert capsys.readouterr().err == f"error: {path}: {name} is not what a packed file has\n"


def test_a_files_name_reaches_the_terminal_without_what_it_would_act_on(capsys):
    assert cubin.main(["\x1b[31mred.py"]) == 2
    assert capsys.readouterr().err.startswith("error: \\x1b[31mred.py: cannot be read")
