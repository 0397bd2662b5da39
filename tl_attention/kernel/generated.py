"""Reads the generated CUDA as the sequence of loads, waits, barriers and products that a block of threads runs.

Only structure is read: loops, branches and calls. Loops and branches without such a call in them are left out, and
with them every condition on the thread's index; what is left depends on the sizes alone and is unrolled for given ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, Sequence

from tl_attention.statements import RING

FOR = re.compile(r"for \(int (\w+) = 0; \1 < (.+); \+\+\1\) \{$")
IF = re.compile(r"if \((.+)\) \{$")
SHARED = re.compile(r"void\* (\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);")
CALLS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("load", re.compile(r"tl::cp_async_gs\w*<\d+>\(\(&\(\(\(half_t\*\)(\w+)\)|"
                        r"tl::cp_async_gs\w*<\d+>\(\(&\(\(\(bfloat16_t\*\)(\w+)\)")),
    ("commit", re.compile(r"tl::cp_async_commit\(")),
    ("wait", re.compile(r"tl::cp_async_wait<(\d+)>")),
    ("sync", re.compile(r"__syncthreads\(")),
    ("mma0", re.compile(r"tl::wgmma_ss<")),
    ("mma1", re.compile(r"tl::wgmma_rs<")),
    ("products done", re.compile(r"tl::warpgroup_wait<0>")),
)


@dataclass(frozen=True)
class Event:
    """`load` of a ring buffer, `commit`, `wait` (outstanding groups), `sync`, `mma0`, `mma1` or `products done`."""

    kind: str
    ring: str = ""
    outstanding: int = 0


@dataclass(frozen=True)
class _Loop:
    variable: str
    trips: str
    body: tuple


@dataclass(frozen=True)
class _Branch:
    condition: str
    body: tuple
    otherwise: tuple


def ring_buffers(source: str, shared_bytes: int, slot_bytes: int) -> dict[str, int]:
    """Buffers that the generated code gives each ring, by the load that fills it."""
    starts = {name: int(offset) for name, offset in SHARED.findall(source)}
    ends = sorted([*starts.values(), shared_bytes])
    return {load: (ends[ends.index(starts[name]) + 1] - starts[name]) // slot_bytes for name, load in RING.items()}


def unrolled(source: str) -> Callable[[Mapping[str, int]], list[Event]]:
    """A function from the runtime sizes to the events of the first row tile, in order."""
    lines = iter(source[source.index("__launch_bounds__"):].splitlines()[1:])
    tree = _block(lines)[0]
    return lambda sizes: list(_run(tree, dict(sizes)))


def _block(lines: Iterator[str]) -> tuple[tuple, bool]:
    """(the nodes up to the closing brace, whether an else branch follows)."""
    nodes: list = []
    for line in lines:
        text = line.strip()
        loop, branch = FOR.match(text), IF.match(text)
        if loop:
            body, _ = _block(lines)
            nodes += _loop(loop[1], loop[2], body)
        elif branch:
            body, has_else = _block(lines)
            otherwise = _block(lines)[0] if has_else else ()
            nodes += _branch(branch[1], body, otherwise)
        elif text == "{":
            nodes += _block(lines)[0]
        elif text.startswith("}"):
            return tuple(nodes), "else" in text
        else:
            nodes += _events(text)
    return tuple(nodes), False


def _loop(variable: str, trips: str, body: Sequence) -> list:
    # The copies of one tile, or the instructions of one product: one event.
    if body and all(isinstance(node, Event) and node == body[0] for node in body):
        return [body[0]]
    return [_Loop(variable, trips, tuple(body))] if body else []


def _branch(condition: str, body: tuple, otherwise: tuple) -> list:
    # A tile with fewer rows than the threads could copy at once: some threads load, for all it is one load.
    if "threadIdx" in condition and {getattr(node, "kind", "") for node in body} == {"load"}:
        return list(body)
    return [_Branch(condition, body, otherwise)] if body or otherwise else []


def _events(text: str) -> list[Event]:
    for kind, pattern in CALLS:
        match = pattern.search(text)
        if match and kind == "load":
            return [Event("load", ring=RING[match[1] or match[2]])]
        if match:
            return [Event(kind, outstanding=int(match[1]) if kind == "wait" else 0)]
    return []


def _run(nodes: Sequence, names: dict[str, int]) -> Iterator[Event]:
    for node in nodes:
        if isinstance(node, Event):
            yield node
        elif isinstance(node, _Loop):
            for trip in range(_value(node.trips, names)):
                yield from _run(node.body, {**names, node.variable: trip})
        else:
            yield from _run(node.body if _value(node.condition, names) else node.otherwise, names)


def _value(expression: str, names: Mapping[str, int]) -> int:
    text = expression.replace("((int)blockIdx.x)", "0").replace("(int64_t)", "").replace("/", "//")
    text = text.replace("&&", " and ").replace("||", " or ")
    return eval(text, {"__builtins__": {}, "min": min, "max": max}, dict(names))
