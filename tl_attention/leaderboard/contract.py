"""What the leaderboard asks of a submission: the test lines, and the rules that the file alone can break.

Torch is not imported here: a file is judged without running it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from tl_attention.errors import InputError
from tl_attention.leaderboard.rules import code_violations

MAX_BYTES = 1_000_000
FORBIDDEN_WORD = "stream"
DIRECTIVE = "#!POPCORN"
# `gpus` is the other spelling of `gpu`, so a file that has both repeats itself.
DIRECTIVE_NAMES = {"leaderboard": "leaderboard", "gpu": "gpu", "gpus": "gpu"}


@dataclass(frozen=True)
class TestLine:
    """One test of the leaderboard: q, k and v are fp16, contiguous, (batch_size, num_heads, seq_len, head_dim)."""

    # The name starts with Test: this keeps pytest from collecting it.
    __test__: ClassVar[bool] = False

    batch_size: int
    num_heads: int
    seq_len: int
    head_dim: int
    seed: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = 0 if name == "seed" else 1
            if type(value) is not int or value < least:
                raise InputError(f"test line: {name} is {value!r}, expected an integer of at least {least}")

    @classmethod
    def parse(cls, text: str, where: str = "test line") -> TestLine:
        """Read `batch_size: 1; num_heads: 64; seq_len: 1024; head_dim: 128; seed: 1118`, keys in any order.

        Raises InputError, which begins with `where`, for a part that is not `key: integer`, and for an unknown,
        repeated or missing key.
        """
        names = tuple(field.name for field in fields(cls))
        values: dict[str, int] = {}
        for part in text.split(";"):
            match = re.fullmatch(r"\s*(\w+)\s*:\s*([+-]?[0-9]+)\s*", part)
            if match is None:
                raise InputError(f"{where}: {part.strip()[:60]!r} is not `key: integer`, expected `{RANKED_LINES[0]}`")
            name = match[1]
            if name not in names:
                raise InputError(f"{where}: unknown key {name[:40]!r}, expected {', '.join(names)}")
            if name in values:
                raise InputError(f"{where}: {name} is given twice, expected once")
            values[name] = int(match[2])
        missing = [name for name in names if name not in values]
        if missing:
            raise InputError(f"{where}: {', '.join(missing)} missing, expected all of {', '.join(names)}")
        try:
            return cls(**values)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None

    def __str__(self) -> str:
        return "; ".join(f"{name}: {value}" for name, value in vars(self).items())


RANKED_LINES = (
    TestLine(batch_size=1, num_heads=64, seq_len=1024, head_dim=128, seed=1118),
    TestLine(batch_size=2, num_heads=64, seq_len=4096, head_dim=128, seed=1118),
    TestLine(batch_size=4, num_heads=64, seq_len=8192, head_dim=128, seed=1118),
)
"""The three lines of the class leaderboard; the last is ranked."""


def read_test_lines(path: Path) -> tuple[TestLine, ...]:
    """The test lines of a file, one a line, blank lines skipped.

    Raises InputError, which names file and line, for a file that cannot be read, a bad line, or none at all.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not text: byte {error.start} is not UTF-8") from None
    lines = tuple(
        TestLine.parse(line, f"{path}:{number}")
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    )
    if not lines:
        raise InputError(f"{path}: no test line, expected at least one such as `{RANKED_LINES[0]}`")
    return lines


def violations(source: bytes) -> list[str]:
    """Each rule of the servers that the file breaks, one sentence each, in the order of their lines.

    The rules about code (installation, timers, caches, sys.stdout) are heuristics on the syntax tree: they follow
    import aliases and simple assignments, not data flow in general.
    """
    found: list[tuple[int, str]] = []
    if len(source) > MAX_BYTES:
        found.append((0, f"The file has {len(source):,} bytes, over the limit of {MAX_BYTES:,}."))
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        found.append((line, f"Byte {error.start} is not UTF-8 ({error.reason})."))
        text = source.decode("utf-8", errors="replace")
    found += _word_violations(text)
    found += _directive_violations(text)
    found += code_violations(text)
    return [f"line {line}: {message}" if line else message for line, message in sorted(found)]


def _word_violations(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if FORBIDDEN_WORD in line.lower():
            yield number, f"The word {FORBIDDEN_WORD!r} occurs; one server rejects it anywhere, comments included."


def _directive_violations(text: str) -> Iterator[tuple[int, str]]:
    """A directive counts in the unbroken run of comment lines at the top of the file, and nowhere else."""
    seen: dict[str, int] = {}
    in_first_block = True
    for number, line in enumerate(text.split("\n"), start=1):
        in_first_block = in_first_block and line.startswith("#")
        if not line.strip().upper().startswith(DIRECTIVE):
            continue
        words = line.split()
        key = words[1].lower() if len(words) > 1 else ""
        name = DIRECTIVE_NAMES.get(key)
        if not in_first_block:
            yield number, f"The directive {line.strip()[:60]!r} does not count outside the first comment block."
        elif words[0] != DIRECTIVE:
            yield number, f"The directive starts with {words[0][:40]!r}, expected {DIRECTIVE!r}."
        elif name is None:
            yield number, f"The directive {key[:40]!r} is unknown, expected one of {', '.join(DIRECTIVE_NAMES)}."
        elif name in seen:
            yield number, f"The directive {key!r} repeats that of line {seen[name]}."
        else:
            seen[name] = number
            if len(words) < 3:
                yield number, f"The directive {key!r} has no value, expected `{DIRECTIVE} {key} NAME`."
