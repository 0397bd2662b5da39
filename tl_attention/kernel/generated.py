"""Reads the generated CUDA as the sequence of loads, waits, barriers and products that a thread runs.

Only structure is read: loops, branches and calls. Loops and branches without such a call in them are left out; what is
left depends on the sizes and the thread's role alone, and is unrolled for given ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, Sequence

from tl_attention.statements import RING

FOR = re.compile(r"for \(int (\w+) = 0; \1 < (.+); \+\+\1\) \{$")
IF = re.compile(r"if \((.+)\) \{$")
RING_OF = {buffer[0]: load for buffer, load in RING.items()}
SHARED = re.compile(r"void\* (\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (\d+)\)\);")
CALLS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("load", re.compile(r"tl::cp_async_gs\w*<\d+>\(\(&\(\(\(half_t\*\)(\w+)\)|"
                        r"tl::cp_async_gs\w*<\d+>\(\(&\(\(\(bfloat16_t\*\)(\w+)\)")),
    ("commit", re.compile(r"tl::cp_async_commit\(")),
    ("wait", re.compile(r"tl::cp_async_wait<(\d+)>")),
    ("sync", re.compile(r"__syncthreads\(")),
    ("mma0", re.compile(r"tl::wgmma_ss<")),
    ("mma1", re.compile(r"tl::wgmma_rs<")),
    ("products wait", re.compile(r"tl::(?:warpgroup_wait|wait_wgmma)<(\d+)>")),
    ("tma load", re.compile(r"tl::tma_load\((\w)_desc")),
)
BARRIER = re.compile(r"(\w)_(full|free)\[(.+)\]\.(wait|arrive)\((.*)\);$")
BARRIER_COUNT = re.compile(r"(\w_(?:full|free))\[\d+\]\.init\((\d+)\);")


@dataclass(frozen=True)
class Event:
    """One call: its kind as in CALLS, or `wait full`, `arrive full`, `wait free`, `arrive free` for an mbarrier.

    `ring` is the buffer's load (`Q` for Q_shared), `outstanding` what a wait leaves in flight, `slot` and `parity` those
    of the mbarrier.
    """

    kind: str
    ring: str = ""
    outstanding: int = 0
    slot: int = 0
    parity: int = 0


@dataclass(frozen=True)
class _Barrier:
    kind: str
    ring: str
    slot: str
    parity: str


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


def barrier_counts(source: str) -> dict[str, set[str]]:
    """Arrivals that each mbarrier of the rings waits for, as initialised."""
    counts: dict[str, set[str]] = {}
    for name, count in BARRIER_COUNT.findall(source):
        counts.setdefault(name, set()).add(count)
    return counts


def unrolled(source: str) -> Callable[..., list[Event]]:
    """A function from the runtime sizes, and a thread's index, to the events of the first row tile, in order."""
    lines = iter(source[source.index("__launch_bounds__"):].splitlines()[1:])
    tree = _block(lines)[0]
    return lambda sizes, thread=0: list(_run(tree, {**sizes, "thread": thread}))


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
    # One lane of a warp, for the warp.
    if "tl_shuffle_elect" in condition:
        return list(body)
    return [_Branch(condition, body, otherwise)] if body or otherwise else []


def _events(text: str) -> list[Event | _Barrier]:
    barrier = BARRIER.match(text)
    if barrier:
        ring, state, slot, call, parity = barrier.groups()
        return [_Barrier(f"{call} {state}", RING_OF.get(ring, ring), slot, parity or "0")]
    for kind, pattern in CALLS:
        match = pattern.search(text)
        if match and kind == "load":
            return [Event("load", ring=RING[match[1] or match[2]])]
        if match and kind == "tma load":
            return [Event(kind, ring=RING_OF.get(match[1], match[1]))]
        if match:
            return [Event(kind, outstanding=int(match[1]) if match.groups() else 0)]
    return []


def _run(nodes: Sequence, names: dict[str, int]) -> Iterator[Event]:
    for node in nodes:
        if isinstance(node, Event):
            yield node
        elif isinstance(node, _Barrier):
            yield Event(node.kind, node.ring, slot=_value(node.slot, names), parity=_value(node.parity, names))
        elif isinstance(node, _Loop):
            for trip in range(_value(node.trips, names)):
                yield from _run(node.body, {**names, node.variable: trip})
        else:
            yield from _run(node.body if _value(node.condition, names) else node.otherwise, names)


def _value(expression: str, names: Mapping[str, int]) -> int:
    text = expression.replace("((int)blockIdx.x)", "0").replace("((int)threadIdx.x)", "thread")
    text = text.replace("(int64_t)", "").replace("/", "//")
    text = text.replace("&&", " and ").replace("||", " or ")
    return eval(text, {"__builtins__": {}, "min": min, "max": max}, dict(names))
