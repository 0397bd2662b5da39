"""This module holds the leaderboard's test lines and the limits of a file, and reads a packed file's constants."""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from tl_attention.errors import InputError
from tl_attention.lab.measure.records import MOST_BYTES, read_lines
from tl_attention.schedule.files import reading
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted

MAX_BYTES = 1_000_000
# One server rejects a file that has this word anywhere, in any case.
FORBIDDEN_WORD = "stream"
# The constants in which a packed file describes its machine code, by their names in a record.
DEVICE_CODE = {"device_code": "DEVICE_CODE", "compilers": "COMPILERS", "cubin_sha256": "CUBIN_SHA256"}
# Python raises these for text that is not Python, and for a value that is computed.
NOT_CONSTANT = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)

Size = Annotated[int, Field(ge=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TestLine:
    """A test line holds the sizes and the seed of one test of the leaderboard.

    Its q, k and v are fp16, contiguous, (batch_size, num_heads, seq_len, head_dim).
    """

    # The name starts with Test: this keeps pytest from collecting it.
    __test__: ClassVar[bool] = False

    batch_size: Size
    num_heads: Size
    seq_len: Size
    head_dim: Size
    seed: Annotated[int, Field(ge=0)]

    @classmethod
    def parse(cls, text: str, where: str = "test line") -> TestLine:
        """Makes a test line of text that gives each size and the seed once, in any order.

        RANKED_LINES show the form. Raises InputError that begins with `where`.
        """
        pairs = [part.partition(":")[::2] for part in text.split(";")]
        values: dict[str, Any] = {name.strip(): value.strip() for name, value in pairs}
        try:
            if len(values) < len(pairs):
                raise ValueError("a key is given twice")
            return cls(**values)
        except ValueError as error:
            key, message = first_error(error)
            raise InputError(f"{where}: {dotted(key)}{message}, expected a line as `{RANKED_LINES[0]}`") from None

    def __str__(self) -> str:
        return "; ".join(f"{name}: {value}" for name, value in vars(self).items())


RANKED_LINES = tuple(TestLine(batch, 64, seq, 128, 1118) for batch, seq in ((1, 1024), (2, 4096), (4, 8192)))
"""The three lines of the class leaderboard; the last is ranked."""


def read_submission(path: Path) -> bytes:
    """Returns the bytes of a submission file. Raises InputError for a file that cannot be read."""
    return reading.read(path, MOST_BYTES, "submission")[0]


def constants(submission: bytes) -> dict[str, Any]:
    """Returns the constants at the top level of a Python file, by name. Nothing is executed.

    A file that is not Python has none.
    """
    found: dict[str, Any] = {}
    with suppress(*NOT_CONSTANT):
        for node in ast.parse(submission).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                with suppress(*NOT_CONSTANT):
                    found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def read_device_code(submission: bytes) -> dict[str, Any]:
    """Returns the device code's name, compilers and cubin's sha256 that a packed file states, {} if one is absent.

    A baseline has none. A record that holds these values stays true of a file after its comments and host code have
    changed.
    """
    found = constants(submission)
    complete = all(name in found for name in DEVICE_CODE.values())
    return {key: found[name] for key, name in DEVICE_CODE.items()} if complete else {}


def read_test_lines(path: Path) -> tuple[TestLine, ...]:
    """Reads the test lines of a file, and skips blank lines. Raises InputError that names file and line."""
    lines = tuple(TestLine.parse(text.decode(errors="replace"), where) for where, text in read_lines(path))
    if not lines:
        raise InputError(f"{path}: no test line, expected at least one as `{RANKED_LINES[0]}`")
    return lines
