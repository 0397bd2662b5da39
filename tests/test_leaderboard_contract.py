"""The leaderboard's test lines, and what is said of lines that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import RANKED_LINES, TestLine, read_test_lines


def test_ranked_lines_parse_back() -> None:
    assert str(RANKED_LINES[0]) == "batch_size: 1; num_heads: 64; seq_len: 1024; head_dim: 128; seed: 1118"
    assert [TestLine.parse(str(line)) for line in RANKED_LINES] == list(RANKED_LINES)
    assert [(line.batch_size, line.seq_len) for line in RANKED_LINES] == [(1, 1024), (2, 4096), (4, 8192)]
    shuffled = "; ".join(reversed(str(RANKED_LINES[2]).split("; ")))
    assert TestLine.parse(shuffled) == RANKED_LINES[2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "batch_size: the key is missing"),
        ("batch_size: one", "batch_size: input should be a valid integer, unable to parse"),
        (
            "batch_size: 1; num_heads: 1; seq_len: 1; head_dim: 1; seed: 0; heads: 2",
            "heads: unexpected keyword argument",
        ),
        ("seed: 1; seed: 2", "a key is given twice"),
        ("batch_size: 1; seed: 2", "num_heads: the key is missing"),
        ("batch_size: 0; num_heads: 1; seq_len: 1; head_dim: 1; seed: 0", "batch_size: expected at least 1, found"),
        ("batch_size: 1; num_heads: 1; seq_len: 1; head_dim: 1; seed: -1", "seed: expected at least 0, found"),
    ],
)
def test_a_bad_test_line_says_what_and_where(text: str, message: str) -> None:
    with pytest.raises(InputError, match=r"\Atests.txt:3: .*, expected a line as `batch_size: 1; .*`\Z") as caught:
        TestLine.parse(text, "tests.txt:3")
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_file_of_test_lines(tmp_path: Path) -> None:
    path = tmp_path / "tests.txt"
    path.write_text("\n".join(map(str, RANKED_LINES)) + "\n\n", encoding="utf-8")
    assert read_test_lines(path) == RANKED_LINES
    for content, words in (
        (b"\n\nnonsense\n", r"tests\.txt:3: batch_size"),
        (b"\n", "no test line"),
        (b"\xe4", "txt:1: "),
    ):
        path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            read_test_lines(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_test_lines(tmp_path)
