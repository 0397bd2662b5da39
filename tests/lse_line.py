"""Finds the lines of generated code that store the LSE, and has such a line store another value."""

import re
from dataclasses import replace

from code_mutants.reading import Code

# The line that stores: of one head's rows, and of several heads' in one tile.
CALL = "tl_attention_store_lse("
OF_HEADS = "tl_attention_store_lse_of<"
# Faults that the proof leaves to the numbers: test_cases_lse.py shows that they pass, and test_op_lse.py runs them.
VALUES = {
    "the maximum before the last block": ("best", r"store_lse\(scores_max,", "store_lse(scores_max_prev,"),
    "a sum of one thread": ("best", r", scores_scale, ", ", denominator, "),
    "a scale of natural units": ("best", r"0x1\.71547652b82fep\+0f/\*1\.442695e\+00\*/", "0x1p+0f/*1.000000e+00*/"),
    "the sum of the last block": ("seed", r", denominator, ", ", scores_sum, "),
}


def stores(source: str) -> list[int]:
    """Returns the numbers, from 0, of the kernel's lines that store the LSE: calls, not the function that they call."""
    lines = source.splitlines()
    body = next(number for number, line in enumerate(lines) if "__launch_bounds__" in line)
    return [number for number, line in enumerate(lines) if number > body and line.strip().startswith((CALL, OF_HEADS))]


def line_of(code: Code) -> str:
    [number] = stores(code.source)
    return code.source.splitlines()[number]


def with_value(code: Code, fault: str) -> Code:
    """Returns the code of a kernel with another value passed to its store."""
    _, pattern, replacement = VALUES[fault]
    line = line_of(code)
    changed, found = re.subn(pattern, replacement, line)
    assert found == 1, f"{pattern!r} matches {found} times in {line!r}"
    return replace(code, source=code.source.replace(line, changed))
