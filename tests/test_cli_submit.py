"""`submit`: packs a schedule into a submission."""

from __future__ import annotations

from pathlib import Path

import pytest

from tl_attention.errors import InputError
from tl_attention.leaderboard import contract, submission

CLEAN = """\
#!POPCORN leaderboard flashattention
#!POPCORN gpu H100
import torch


def custom_kernel(data):
    return torch.nn.functional.scaled_dot_product_attention(*data)
"""


@pytest.fixture
def files(tmp_path, monkeypatch) -> Path:
    """A folder with a submission; commands run there."""
    monkeypatch.chdir(tmp_path)
    Path("sdpa.py").write_text(CLEAN)
    Path("latin.txt").write_bytes(b"x\xe4")
    return tmp_path


def test_submit_packs_a_schedule_and_says_path_and_size(cli, files, seed_path) -> None:
    result = cli("submit", seed_path)
    size = Path("leaderboard_submit.py").stat().st_size
    assert (result.exit_code, result.stdout) == (0, f"wrote leaderboard_submit.py, {size:,} bytes, all\n")
    assert contract.FORBIDDEN_WORD.encode() not in Path("leaderboard_submit.py").read_bytes().lower()


def test_a_schedule_file_without_suffix_is_packed(cli, files, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(name) and [])
    Path("noext").write_bytes(Path(seed_path).read_bytes())
    result = cli("submit", "noext", "-o", "mine.py")
    assert (result.exit_code, Path("mine.py").read_text()) == (0, "noext"), result.stderr


def test_no_control_character_of_a_name_reaches_the_terminal(cli, files, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(name) and [])
    wrote = cli("submit", seed_path, "-o", "\x1b[31m.py")
    assert wrote.stdout.startswith("wrote \\x1b[31m.py, ")


def test_submit_passes_its_form_and_its_output_on(cli, files, seed_path, monkeypatch) -> None:
    monkeypatch.setattr(submission, "write", lambda name, schedule, output, embed: output.write_text(f"{embed}") and [])
    result = cli("submit", seed_path, "--embed", "cuda", "-o", "mine.py")
    assert result.exit_code == 0 and Path("mine.py").read_text() == "cuda"


def test_the_file_names_a_shipped_schedule_as_submit_takes_it(cli, files, seed_path, monkeypatch) -> None:
    # The first line that each form writes of itself.
    monkeypatch.setitem(
        submission.FORMS,
        "all",
        lambda schedule, name: (
            f"# Made by `tl-attention submit {submission._identity(schedule, name)['name']}`\n{CLEAN}"
        ),
    )
    for given, named in (("experiments/sections", "experiments/sections"), ("best", "best"), (seed_path, "seed")):
        assert cli("submit", given, "-o", "packed.py").exit_code == 0
        first = Path("packed.py").read_text().splitlines()[0]
        assert first == f"# Made by `tl-attention submit {named}`"


@pytest.mark.parametrize("name", ["", "a b", "a/", "/a", "a//b", "a\nb", "a`b"])
def test_a_name_that_is_no_part_of_a_comment_is_refused(name) -> None:
    with pytest.raises(InputError, match="^schedule name .*expected letters"):
        submission._identity(None, name)


def test_a_submission_that_would_break_a_rule_is_not_written_and_fails(error_of, files, seed_path, monkeypatch) -> None:
    monkeypatch.setitem(submission.FORMS, "all", lambda schedule, name: "# a stream\n" + CLEAN)
    message = error_of("submit", seed_path)
    assert f"{seed_path}: not written, the submission would break" in message and "'stream'" in message
    assert not Path("leaderboard_submit.py").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["sdpa.py"], "sdpa.py: expected a schedule's name or file; a submission file is run with --evaluate"),
        (["{seed}", "sdpa.py"], "2 schedules, expected one"),
        (["{seed}", "--lines", "lines.txt"], "--lines says how to evaluate: expected it with --evaluate"),
        (["{seed}", "--device", "cpu"], "--device says how to evaluate"),
        (["{seed}", "--embed", "ptx"], "'ptx' is not one of 'all', 'tilelang', 'cuda'"),
        (["{seed}", "--embed", "tilelang", "-o", "."], "cannot be written: Is a directory"),
        (["{seed}", "--embed", "tilelang", "-o", "none/x.py"], "none/x.py: cannot be written: No such file"),
        ([], "Missing argument 'FILES...'"),
        (["latin.txt"], "latin.txt:1: not a text file"),
    ],
)
def test_bad_input_of_submit_is_told_in_one_line(arguments, words, error_of, files, seed_path) -> None:
    assert words in error_of("submit", *(argument.format(seed=seed_path) for argument in arguments))
