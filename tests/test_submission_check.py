"""`submit --check`: a file is packed again from the schedule that it carries, and compared; and what its cubin needs."""

from __future__ import annotations

import base64
import lzma
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from submissions import COMMITTED, ROOT, SCHEDULES, text

from tl_attention.errors import InputError
from tl_attention.leaderboard import machine_code, submission
from tl_attention.leaderboard.contract import constants

PACKED = COMMITTED.read_text(encoding="utf-8")
SHA256 = constants(PACKED.encode())["CUBIN_SHA256"]


def written(folder: Path, packed: str) -> str:
    path = folder / "packed.py"
    path.write_text(packed, encoding="utf-8")
    return str(path)


@pytest.fixture
def packed_before(monkeypatch) -> None:
    """What is packed again is the text that the tests of packed files have: of best, made once."""

    def pack(name, schedule):
        assert schedule == SCHEDULES[name]
        return text(name)

    monkeypatch.setattr(submission, "pack", pack)


def test_the_committed_file_is_made_again(cli):
    result = cli("submit", "--check", str(COMMITTED))
    assert result.exit_code == 0 and result.stdout == (
        f"cubin carried     {SHA256}\ncubin made again  {SHA256}\nthe cubins are the same, and so is every other byte\n"
    )


def test_a_change_of_the_program_is_told_by_its_line(cli, tmp_path, packed_before):
    changed = PACKED.replace("release_v(t - 1, tile, s, c)", "release_v(t, tile, s, c)", 1)
    line = next(n for n, pair in enumerate(zip(PACKED.splitlines(), changed.splitlines()), 1) if pair[0] != pair[1])
    result = cli("submit", "--check", written(tmp_path, changed))
    assert result.exit_code == 1 and result.stdout.endswith(
        f"\nthe cubins are the same, the text differs from line {line} on\n"
    )


def test_another_cubin_is_told_also_where_the_file_names_its_hash(cli, tmp_path, packed_before):
    other = base64.b64encode(lzma.compress(b"another")).decode()
    changed = PACKED.replace(constants(PACKED.encode())["CUBIN_XZ"], f"\n{other}\n")
    result = cli("submit", "--check", written(tmp_path, changed))
    assert result.exit_code == 1 and "\nthe cubins differ, the text differs from line " in result.stdout
    assert f"made again  {SHA256}\n" in result.stdout and f"carried     {SHA256}" not in result.stdout


def test_a_file_is_read_and_not_executed(cli, tmp_path, packed_before):
    result = cli("submit", "--check", written(tmp_path, f"{PACKED}\nraise SystemExit('it was executed')\n"))
    assert result.exit_code == 1 and f"from line {len(PACKED.splitlines()) + 1} on" in result.stdout


@pytest.mark.parametrize(
    "changes, words",
    [
        ("x = 1\n", "no NAME, expected a file that `tl-attention submit` packed"),
        ("NAME = 3\n", "no NAME, expected a file that"),
        (f"{PACKED}\nSCHEDULE = 3\n", "no SCHEDULE, expected a file that"),
        (f"{PACKED}\nSCHEDULE = 'block_M: ['\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nSCHEDULE = 'block_M: 3'\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nSCHEDULE = '3'\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nSCHEDULE = '" + "[" * 9999 + "'\n", "SCHEDULE is not what a packed file has"),
        (f"{PACKED}\nNAME = 'a b'\n", "schedule name 'a b', expected letters"),
        (f"{PACKED}\nCUBIN_XZ = 'no base64'\n", "CUBIN_XZ is not what a packed file has"),
        (f"{PACKED}\nCUBIN_XZ = 'AAAA'\n", "CUBIN_XZ is not what a packed file has"),
        (f"{PACKED}\nCUBIN_XZ = ''\n", "CUBIN_XZ is not what a packed file has"),
    ],
)
def test_a_file_that_holds_something_else_is_one_clear_line(error_of, tmp_path, changes, words):
    assert words in error_of("submit", "--check", written(tmp_path, changes))


def test_files_that_cannot_be_read_are_one_clear_line(error_of):
    assert "\\x1b[31mred.py: cannot be read" in error_of("submit", "--check", "\x1b[31mred.py")
    assert "2 files, expected one" in error_of("submit", "--check", str(COMMITTED), str(COMMITTED))


# --- what the cubin is made by -------------------------------------------------------------------------------------


def test_cuda_that_nvrtc_refuses_is_one_clear_line():
    words = r"^NVRTC 12\.9\.86 cannot compile the generated CUDA: kernel\.cu\(1\): error: .*$"
    with pytest.raises(InputError, match=words):
        machine_code.build("not_cuda;\n", ("--gpu-architecture=sm_90a",))


def test_the_extra_installs_exactly_what_packs():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    required = {requirement.name: str(requirement.specifier) for requirement in map(Requirement, extras["submit"])}
    exact = {name: version.removeprefix("==") for name, version in required.items() if name != "libcst"}
    assert exact == {**machine_code.PACKAGES, "ruff": submission.RUFF} and "libcst" in required
    assert "tl-attention[submit]" in extras["test"]
    assert re.search(r"^libcst==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
