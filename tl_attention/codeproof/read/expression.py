"""This module parses integer expressions of generated CUDA once, and evaluates them in the arithmetic that it is given.

A tree is nested tuples: ("number", 3), ("name", "blockIdx_x"), ("call", "min", a, b), and (operator, operands ...) with
C's operators. `(int)threadIdx.x` is the name threadIdx_x, `tl::block_rank_in_cluster()` the name
tl__block_rank_in_cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import CodeType
from typing import Any

TOKEN = re.compile(r"\s*(\d+|[A-Za-z_]\w*(?:(?:::|\.)\w+)*|&&|\|\||[<>=!]=|<<|>>|\S)")
# A thread's and a block's place are unsigned, and small: they are read as integers, and as nothing else.
PLACE = re.compile(r"(?:threadIdx\.[xy]|blockIdx\.[xyz])$")
# Binary operators from the one that binds least.
LEVELS = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
SHIFTS, BITS = {"<<", ">>"}, 32
# An integer may be shifted by a block's rank in its cluster, which is small.
RANK = ("name", "tl__block_rank_in_cluster")
COMPARISONS = {"==", "!=", "<", "<=", ">", ">="}
# Operators that are right modulo 2^32: a result in range is right even where something that it is made of is not.
OF_A_RING = {"+", "-", "*", "<<", "negative"}
# What stands behind a value, and so not behind a cast.
AFTER_A_VALUE = {")", "]", ",", "?", ":", "*", "/", "%", *(token for level in LEVELS for token in level)}
# Operators that Python does not have for arrays, or has with another meaning than C.
FUNCTIONS = {
    "/": "quotient", "%": "remainder", "&&": "both", "||": "either", "?": "select", "!": "negation", "==": "equal",
    "!=": "unequal",
}  # fmt: skip
# What an expression that is not one of known integers raises.
UNREADABLE = (NameError, SyntaxError, TypeError, ValueError, LookupError, ZeroDivisionError)

Tree = tuple


@dataclass(frozen=True)
class Expression:
    """An Expression is an integer expression, or a condition, of generated CUDA, parsed into a tree."""

    tree: Tree

    @cached_property
    def names(self) -> frozenset[str]:
        """Returns the variables in the expression."""
        return frozenset(node[1] for node in walk(self.tree) if node[0] == "name")

    @cached_property
    def constant(self) -> int | None:
        """Returns the value of an expression that is nothing but a number, else None."""
        return self.tree[1] if self.tree[0] == "number" else None

    @cached_property
    def comparisons(self) -> tuple[Expression, ...]:
        """Returns the comparisons in the expression."""
        return tuple(Expression(node) for node in walk(self.tree) if node[0] in COMPARISONS)

    @cached_property
    def code(self) -> CodeType:
        """Compiles the expression to Python, where operators of C that Python lacks are calls of functions."""
        return compile(_python(self.tree), str(self.tree)[:80], "eval")

    @cached_property
    def _fitting(self) -> dict[frozenset[str], CodeType]:
        return {}

    def fitting(self, wide: frozenset[str]) -> CodeType:
        """Compiles the expression with a call of `fits` for each result of 32 bits.

        These names have 64 bits. Results are those that something else than sums and products is made of.
        """
        wide &= self.names
        if wide not in self._fitting:
            self._fitting[wide] = compile(_python(self.tree, wide, False), str(self.tree)[:80], "eval")
        return self._fitting[wide]

    def __call__(self, arithmetic: dict[str, Any], names: Mapping[str, Any]) -> Any:
        """Evaluates the expression for values of its names, with the functions of `arithmetic` for operators of C.

        Raises one of UNREADABLE where a name has none.
        """
        constant = self.constant
        return eval(self.code, arithmetic, names) if constant is None else constant


@cache
def parsed(text: str) -> Expression:
    """Parses a text of C as an integer expression; raises SyntaxError for any other text."""
    tokens = _Tokens(TOKEN.findall(text))
    tree = _ternary(tokens)
    if tokens.next:
        raise SyntaxError(f"{tokens.next!r} in {text[:80]!r}")
    return Expression(tree)


def walk(tree: Tree) -> Iterator[Tree]:
    """Yields a tree and all trees below it."""
    yield tree
    for part in tree[1:]:
        if isinstance(part, tuple):
            yield from walk(part)


def arguments(text: str) -> list[str]:
    """Cuts the text between a call's parentheses into its arguments, at the commas outside inner brackets."""
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


class _Tokens:
    def __init__(self, tokens: list[str]):
        self.tokens, self.place = tokens, 0

    @property
    def next(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self) -> str:
        self.place += 1
        return self.tokens[self.place - 1] if self.place <= len(self.tokens) else ""

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise SyntaxError(f"{token!r} is missing in {' '.join(self.tokens)[:80]!r}")

    def cast(self) -> str:
        """Takes a cast that changes no value, if one is next, and returns its type, else "".

        Raises SyntaxError for other casts.
        """
        name, closing, cast = (*self.tokens[self.place + 1 : self.place + 4], "", "", "")[:3]
        if self.next != "(" or closing != ")" or cast in ("", *AFTER_A_VALUE):
            return ""
        known = {"int64_t": True, "int": PLACE.match(cast), "uint": cast.isdecimal(), "bool": cast in ("0", "1")}
        if not known.get(name):
            raise SyntaxError(f"the cast ({name}){cast} is none that is known")
        self.place += 3
        return name


def _ternary(tokens: _Tokens) -> Tree:
    condition = _binary(tokens, 0)
    if tokens.next != "?":
        return condition
    tokens.take()
    chosen = _ternary(tokens)
    tokens.expect(":")
    return ("?", condition, chosen, _ternary(tokens))


def _binary(tokens: _Tokens, level: int) -> Tree:
    if level == len(LEVELS):
        return _unary(tokens)
    left = _binary(tokens, level + 1)
    while tokens.next in LEVELS[level]:
        operator = tokens.take()
        right = _binary(tokens, level + 1)
        wide = right[:2] == ("call", "int64_t")
        by, bits = (right[2], 2 * BITS) if wide else (right, BITS)
        if operator in SHIFTS and by != RANK and not (by[0] == "number" and by[1] < bits):
            raise SyntaxError(f"{operator} {_python(right)[:80]} of an integer of {bits} bits")
        left = (operator, left, right)
    return left


def _unary(tokens: _Tokens) -> Tree:
    cast = tokens.cast()
    if cast:
        place = tokens.take() if PLACE.match(tokens.next) else ""
        inner = ("name", place.replace(".", "_")) if place else _unary(tokens)
        return ("call", cast, inner) if cast == "int64_t" else inner
    token = tokens.take()
    if token in ("-", "!"):
        return ("negative" if token == "-" else "!", _unary(tokens))
    if token == "(":
        inner = _ternary(tokens)
        tokens.expect(")")
        return inner
    if token.isdecimal() and str(int(token)) == token:
        return ("number", int(token))
    if not re.match(r"[A-Za-z_]", token) or PLACE.match(token):
        raise SyntaxError(f"{token!r} in {' '.join(tokens.tokens)[:80]!r}")
    name = token.replace("::", "__").replace(".", "_")
    return _call(name, tokens) if tokens.next == "(" else ("name", name)


def _call(name: str, tokens: _Tokens) -> Tree:
    tokens.take()
    given: list[Tree] = []
    while tokens.next != ")":
        given.append(_ternary(tokens))
        if tokens.next != ")":
            tokens.expect(",")
    tokens.take()
    return ("call", name, *given) if given else ("name", name)


def is_wide(tree: Tree, wide: frozenset[str]) -> bool:
    """Says whether an expression has 64 bits in C++, where these names have 64."""
    kind, *parts = tree
    if kind == "number":
        return bool(parts[0] >> (BITS - 1))
    if kind == "name":
        return parts[0] in wide
    if kind in (*COMPARISONS, "!", "&&", "||"):
        return False
    given = parts[:1] if kind in SHIFTS else parts[1:] if kind in ("call", "?") else parts
    return parts[0] == "int64_t" or any(is_wide(part, wide) for part in given)


def _python(tree: Tree, wide: frozenset[str] | None = None, of_ring: bool = True, depth: int = 0) -> str:
    """Returns an expression in Python; where `wide` is given, with calls of `fits` around whole sums and products."""
    kind, *parts = tree
    if kind in ("number", "name"):
        return str(parts[0])
    checked = kind in OF_A_RING and wide is not None and not is_wide(tree, wide)
    texts = [_python(part, wide, checked, depth + 1) for part in (parts[1:] if kind == "call" else parts)]
    if kind == "?" and wide is not None:
        # What is not chosen is not computed.
        condition, here = f"(_{depth} := {texts[0]})", f"_{depth}"
        texts = [condition, f"({texts[1]} if may({here}) else 0)", f"({texts[2]} if may(negation({here})) else 0)"]
    if kind == "call":
        return f"{parts[0]}({', '.join(texts)})"
    if kind == "negative":
        code = f"(-{texts[0]})"
    elif kind in FUNCTIONS:
        code = f"{FUNCTIONS[kind]}({', '.join(texts)})"
    else:
        code = f"({texts[0]} {kind} {texts[1]})"
    return f"fits({code})" if checked and not of_ring else code
