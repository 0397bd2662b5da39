"""This module finds the line of a compiler's error that says what is wrong.

For an error of nvcc, TileLang raises what `tilelang.contrib.nvcc` puts together: the whole kernel, `Compilation
error:`, what nvcc printed, warnings first, and nvcc's command. TileLang's own errors may show the code that they speak
of, with carets below the code.
"""

from __future__ import annotations

import re

LONGEST = 300
OUTPUT = re.compile(r"^Compilation error:\n(.*?)(?:^Command: |\Z)", re.MULTILINE | re.DOTALL)
# `x.cu(3): error: ...`, `x.cu:1:2: fatal error: ...`, `ptxas x.ptx, line 42; error   : ...`, `nvcc fatal   : ...`.
ERROR = re.compile(r"\b(?:error|fatal)\s*:")
# nvcc and ptxas end with this; a reason, if they gave one, stands before it.
GIVES_UP = re.compile(r"(?:nvcc|ptxas) (?:fatal|error)\s*:")
WARNING = re.compile(r"\b(?:warning|Remark)\b")
# `  3 |   code`, `    |   ^`, or carets alone.
SHOWN_CODE = re.compile(r"\d*\s*\||\W*$")
VARYING_WAIT = "Downcast from tirx."
CANNOT_LOWER = (
    "TileLang 0.1.15 cannot lower this pipeline: in the iterations behind the last load fewer and fewer loads are in "
    "flight, and its code generator wants one number for the wait of all of them; use fewer buffers"
)


def telling_line(error: Exception) -> str:
    """Returns the line of TileLang's exception that says what went wrong, nvcc's first error if nvcc printed one.

    Of TileLang's own errors it is a line that is no code.
    """
    text = str(error)
    output = OUTPUT.search(text)
    if output:
        return f"nvcc: {first_error(output[1])}"
    kind, lines = type(error).__name__, _lines(text)
    if not lines:
        return kind
    if VARYING_WAIT in text:
        return f"{CANNOT_LOWER} ({kind}: {lines[0][:LONGEST]})"
    spoken = [line for line in lines if not SHOWN_CODE.match(line)] or lines
    # Where it shows calls, the error comes last.
    traceback = spoken[0].startswith("Traceback")
    line_of_error = next((line for line in spoken if ERROR.search(line)), spoken[-1 if traceback else 0])
    return f"{kind}: {line_of_error[:LONGEST]}"


def first_error(output: str) -> str:
    """Returns the first error in nvcc's output, or what was printed before nvcc gave up without an error.

    The latter is up to three lines that are neither warnings nor code.
    """
    lines = _lines(output)
    error = next((line for line in lines if ERROR.search(line) and not GIVES_UP.match(line)), None)
    if error:
        return error[:LONGEST]
    said = [line for line in lines if not WARNING.search(line) and not SHOWN_CODE.match(line)]
    return "; ".join(said[:3])[:LONGEST] or "it failed and printed nothing"


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]
