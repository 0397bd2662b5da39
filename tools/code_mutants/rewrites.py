"""Rewrites a line of C++ in ways that a compiler takes without a word, and a reader must know in full."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# A statement that declares a variable, or leaves a loop.
DECLARES = re.compile(r"(?:[\w:]+[ *&]+\w+(?: =|;|\[)|break|continue|return)")
STATEMENT = re.compile(r"^( +)(\S.*;)$")
# Conditions on blocks, heads and sizes, at values that the proof's full runs do not have.
CONDITIONS = (
    "((int)blockIdx.x) < 131", "((int)blockIdx.y) < 100", "((int)blockIdx.z) < 100", "batch < 1000", "heads < 1000",
    "seq_q < 5000", "seq_kv < (1 << 25)",
)  # fmt: skip
NAME = re.compile(
    r"(?<![\w.:>])(?:batch|heads|seq_q|seq_kv|head|bz|first_row|blocks|visible|tile|base|turn)(?:_\d+)?(?![\w(.])"
)
ASSIGNED = re.compile(r"^( +)(\w+ = .*;)$")
TYPES = {"int ": "short ", "half_t*": "float*", "bfloat16_t*": "half_t*", "uint ": "int "}


def conditional(line: str) -> Iterator[str]:
    """Puts the statement under a condition that is true in small problems."""
    match = STATEMENT.match(line)
    if match and not DECLARES.match(match[2]):
        yield from (f"{match[1]}if ({condition}) {{\n{line}\n{match[1]}}}" for condition in CONDITIONS)


def chosen(line: str) -> Iterator[str]:
    """Replaces a size or a place by an expression that differs only beyond what the full runs have."""
    for match in _read(line):
        for other in ("({0} & 1023)", "min({0}, 2000)", "({0} == 1234 ? 0 : {0})"):
            yield line[: match.start()] + other.format(match[0]) + line[match.end() :]


def cast(line: str) -> Iterator[str]:
    """Casts a size or a place to fewer bits."""
    for match in _read(line):
        for fewer in ("uint16_t", "bool"):
            yield f"{line[: match.start()]}(({fewer}){match[0]}){line[match.end() :]}"


def _read(line: str) -> Iterator[re.Match[str]]:
    """Finds the names that the line reads: all but the name that it assigns."""
    return (match for match in NAME.finditer(line) if line[: match.start()].strip() or line[match.end() :][:2] != " =")


def declared(line: str) -> Iterator[str]:
    """Declares a variable where it was assigned."""
    if match := ASSIGNED.match(line):
        yield f"{match[1]}int {match[2]}"


def typed(line: str) -> Iterator[str]:
    """Replaces a type by another one."""
    for before, after in TYPES.items():
        if before in line:
            yield line.replace(before, after, 1)


def followed(line: str) -> Iterator[str]:
    """Adds a second statement behind the first."""
    if STATEMENT.match(line):
        yield f"{line} __syncthreads();"


REWRITES: dict[str, Callable[[str], Iterator[str]]] = {
    "conditional": conditional,
    "chosen": chosen,
    "cast": cast,
    "declared": declared,
    "typed": typed,
    "followed": followed,
}
