"""Evaluates the integer expressions of generated CUDA.

TileLang puts every operation into parentheses, and rounds its divisions down: C's operators are Python's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from functools import cache
from types import CodeType
from typing import Any

TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*(?:(?:::|\.)\w+)*|&&|\|\||[<>=!]=|<<|>>|\S)")
PYTHON = {"&&": " and ", "||": " or ", "!": " not ", "/": "//"}
CASTS = {"int", "int64_t", "uint", "uint16_t"}
CLOSING = {"(": ")", "[": "]"}
FUNCTIONS = {"__builtins__": {}, "min": min, "max": max, "__shfl_sync": lambda mask, of_every_lane, lane: of_every_lane}
# What an expression that is not one of integers raises.
UNREADABLE = (NameError, SyntaxError, TypeError, ValueError, LookupError, ZeroDivisionError)


def value(text: str, names: Mapping[str, Any]) -> int:
    """An expression's value. `threadIdx.x` is the name threadIdx_x, `tl::rank()` calls tl__rank."""
    return int(text) if text.isdecimal() else eval(_compiled(text), FUNCTIONS, names)


@cache
def _compiled(text: str) -> CodeType:
    return compile(_python(deque(TOKEN.findall(text))).strip(), text, "eval")


def _python(tokens: deque[str]) -> str:
    """The tokens up to the bracket or colon that closes them, as Python."""
    parts: list[str] = []
    while tokens:
        token = tokens.popleft()
        if token in (")", "]", ":"):
            break
        if token == "?":
            return f"({_python(tokens)}) if ({''.join(parts)}) else ({_python(tokens)})"
        if token in CLOSING:
            inner = _python(tokens)
            if inner not in CASTS:
                parts.append(token + inner + CLOSING[token])
        else:
            parts.append(PYTHON.get(token, token.replace("::", "__").replace(".", "_")))
    return "".join(parts)


def arguments(text: str) -> list[str]:
    """What stands between a call's parentheses, cut at its commas."""
    found, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()]
