"""Damages files, each in a way that a seed draws: bytes, values, types, keys, and where a file is cut off."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import yaml

# What a hand, a script or a full disk may leave where a value was, as text.
TEXTS = (
    *("0", "-1", "1", "3", "true", "null", "~", "nan", "NaN", ".nan", ".inf", "-.inf", "1e999", "-1e999", "1e308"),
    *("5e-324", "0.0", "1.0", "-0.5", "-0.0", "1e-300"),
    *("9" * 30, "1" + "0" * 400, "1" * 5000, "2147483648", "9223372036854775808"),
    *("[]", "{}", "[[]]", "{x: 1}", '{"x": 1}', '""', "''", '"x"', "x", "é", '"\\ud800"', '"\\u0000"'),
    *("\x00", "\x1b[2J", "best", "sm_80", "../../x", "/dev/zero", "1x64", "8x4096+1", "0x0", "1/0", "9999999999x1"),
    *("[1, 2", "}", "'", "&a", "*a"),
)
VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2, True, False, None, 0.0, 1.0, -0.5, 1e308, 1e-300, 5e-324, float("inf"), float("nan")),
    *(10**30, 10**400, 2**31, 2**63),
    *("", "x", "0", "é", "\x00", "\x1b[2J", "x" * 5000, "best", "sm_80", "1,2,64,128", "1/0", "9999999999x1"),
    *([], {}, [[]], [None], [0], [1.5], ["x"], {"x": 1}, {"": {}}, [0] * 50, [1, [2, [3]]]),
)
TOKEN = re.compile(rb"[\w.+-]+")
Tree = Any


def place(draw: random.Random, tree: Tree) -> tuple[Any, Any]:
    """Returns a dict or list of a tree and a key of it; those at the top are as likely as the many below them."""
    while True:
        key = draw.choice([*tree] if isinstance(tree, dict) else range(len(tree)))
        below = tree[key]
        if not isinstance(below, (dict, list)) or not below or draw.random() < 0.3:
            return tree, key
        tree = below


def with_another_value(draw: random.Random, tree: Tree) -> Tree:
    """Returns a tree in which one value, or key, is another, is there twice, or is gone."""
    inner, last = place(draw, tree)
    change = draw.randrange(6)
    if change == 0:
        del inner[last]
    elif change == 1 and isinstance(inner, dict):
        inner[draw.choice(("x", "", "name", f"{last}s", "a.b"))] = inner.pop(last)
    elif change == 1:
        inner.insert(last, inner[last])
    elif change == 2 and isinstance(inner[last], (int, float)):
        inner[last] = inner[last] * draw.choice((-1, 2, 10**6, 0.5)) + draw.choice((0, 1))
    else:
        inner[last] = draw.choice(VALUES)
    return tree


def with_other_bytes(draw: random.Random, data: bytes) -> bytes:
    """Returns data in which some bytes are others, are gone, or are there twice."""
    at, change = draw.randrange(len(data)), draw.randrange(5)
    more = min(len(data), at + draw.choice((1, 1, 2, 8, 100)))
    if change == 0:
        return data[:at]
    if change == 1:
        return data[:at] + data[more:]
    if change == 2:
        return data[:more] + data[at:]
    if change == 3:
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    return data[:at] + draw.randbytes(more - at) + data[more:]


def with_another_word(draw: random.Random, data: bytes) -> bytes:
    """Returns data in which one word or number is another."""
    found = draw.choice([*TOKEN.finditer(data)] or [re.match(rb"", data)])
    assert found
    return data[: found.start()] + draw.choice(TEXTS).encode() + data[found.end() :]


def damaged(draw: random.Random, data: bytes, form: str) -> bytes:
    """Returns the bytes of a file of this form, "yaml", "json", "jsonl" or "", with one damage."""
    if not form or draw.random() < 0.3:
        return with_other_bytes(draw, data)
    if draw.random() < 0.3:
        return with_another_word(draw, data)
    if form == "yaml":
        return written(
            with_another_value(draw, yaml.safe_load(data)), lambda tree: yaml.safe_dump(tree, sort_keys=False)
        )
    lines = data.splitlines()
    n = draw.randrange(len(lines))
    lines[n] = written(with_another_value(draw, json.loads(lines[n])), json.dumps)
    return b"\n".join(lines) + b"\n"


def written(tree: Tree, dump: Callable[[Tree], str]) -> bytes:
    return dump(tree).encode(errors="surrogatepass")
