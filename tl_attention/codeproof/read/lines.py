"""This module cuts generated CUDA into lines where C++ does, and refuses text of which C++ could read something else.

Comments, strings, directives, lines that go on and other spellings of brackets could hide lines, or add some.
"""

from __future__ import annotations

import re

# 0x1.71547652b82fep+0f/*1.442695e+00*/
NUMBER = r"0x[0-9a-f.]+p[+-]\d+f?(?:/\*-?\d\.\d+e[+-]\d+\*/)?"
KNOWN = re.compile(rf'^extern "C" |^ *#pragma unroll|{NUMBER}')
EXPECTED = "ASCII as TileLang prints it, no comment but a number's value, no directive but `#pragma unroll`, no string"
UNKNOWN = re.compile(r"""[^ -}]|["#'$@\\`]|//|/\*|\*/|\?\?|<[:%]|[:%]>|%:""")


def lines_of(source: str) -> list[str]:
    """Returns the lines of generated CUDA; raises SyntaxError for text in its kernels that TileLang does not print.

    What stands before the first kernel is not looked at: the proof knows it to the letter.
    """
    lines = source.split("\n")
    begin = next((number for number, line in enumerate(lines) if "__launch_bounds__" in line), len(lines))
    for number, line in enumerate(lines[begin:], begin + 1):
        if unknown := UNKNOWN.search(KNOWN.sub(" ", line)):
            raise SyntaxError(f"line {number} has {unknown[0]!a}, expected {EXPECTED}")
    return lines
