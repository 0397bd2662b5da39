"""The calls of generated CUDA that matter between threads, each read as the `events.Event` that it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tl_attention.problem.shape import DTYPE_BYTES as ELEMENT_BYTES
from tl_attention.proof.events import CLUSTER, EXPONENTIALS, NAMED, TILE, Event, Q, Read
from tl_attention.proof.generated.expression import arguments, value

# Names of the code and their values, and the Thread under a name that code cannot have.
Names = dict[str, Any]
THREAD = "the thread"
Make = Callable[[Names], Event | None]
# Builds what makes an event, from a matched line and the number of a warp's lanes that run it.
Builder = Callable[[re.Match, int], Make]
# These look like synchronisation, but order nothing between warps: AllReduce over up to 32 threads is shuffles.
HARMLESS = (
    r"__shfl_sync\(|tl::warpgroup_arrive\(|tl::tma_store_arrive\(|tl::prefetch_tma_descriptor\(|uint64_t \w+_mem\[|"
    r"reinterpret_cast<Barrier\*>|tl::AllReduce<tl::\w+, (?:[1-9]|[12]\d|3[0-2]), "
)
IN_SHARED = r"\(\(\w+\*\)(\w)_shared\)"
MATRIX = rf"(?:\(\(void\*\)\(\(char\*\))?\(&\({IN_SHARED}\[(.+?)\]\)\)(?: \+ (.+)\)\))?"


@dataclass(frozen=True)
class Thread:
    """The thread that runs, and what its code does not say by itself.

    `elements` are those of one slot of each shared buffer, `tiles` how many a block works on at most, `next_tile` tells
    the tile that a block takes after a given one, where the code takes them from a counter.
    """

    x: int = 0
    y: int = 0
    block: int = 0
    rank: int = 0
    elements: Mapping[str, int] = field(default_factory=dict)
    tiles: int = 0
    next_tile: Callable[[int], int] = lambda tile: tile


def _slot(buffer: str, element: int, names: Names) -> int:
    """The slot of a shared buffer that an element is in; 0 where slots are not asked for."""
    slots = names[THREAD].elements
    return element // slots[buffer] if slots else 0


def _plain(kind: str) -> Builder:
    """An event without more to it than a number in the code."""

    def builder(match: re.Match, lanes: int) -> Make:
        event = Event(kind, value=int(match[1]) if match.groups() else 0)
        return lambda names: event

    return builder


def _copy(match: re.Match, lanes: int) -> Make:
    event = Event("load", match[1])
    return lambda names: event


def _mbarrier(match: re.Match, lanes: int) -> Make:
    name, index, call, argument = match.groups()
    if call == "arrive":
        return lambda names: Event(
            "arrive", name, value(index, names), lanes, (value(argument, names) if argument else names[THREAD].rank,)
        )
    if call == "expect_transaction":
        return lambda names: Event(
            "expect", name, value(index, names), int(argument) / ELEMENT_BYTES / names[THREAD].elements[name[0]]
        )
    return lambda names: Event(call, name, value(index, names), value(argument, names))


def _named_barrier(kind: str) -> Builder:
    def builder(match: re.Match, lanes: int) -> Make:
        barrier, threads = arguments(match[1])
        return lambda names: Event(kind, NAMED, value(barrier, names), value(threads, names))

    return builder


def _tma_load(match: re.Match, lanes: int) -> Make:
    """`step` is the row that it loads."""
    descriptor, barrier, address, *rest = arguments(match[2])
    name, ring = descriptor.partition("_")[0], re.match(r"(\w)_full\[(.+)\]$", barrier)
    target = re.search(IN_SHARED + r"\[(.+)\]\)\)$", address)
    if not ring or not target or {name} != {ring[1], target[1]}:
        raise SyntaxError(f"a load of {name} into {address} on {barrier}")
    mask = rest.pop(0) if match[1] else None

    def make(names: Names) -> Event:
        slot = _slot(name, value(target[2], names), names)
        if slot != value(ring[2], names):
            raise SyntaxError(f"a load into slot {slot} of {name} on {barrier}")
        masked = value(mask, names) if mask else 1 << names[THREAD].rank
        blocks = tuple(block for block in range(masked.bit_length()) if masked >> block & 1)
        return Event("load", name, slot, blocks=blocks, step=value(rest[1], names))

    return make


def _descriptor(match: re.Match, lanes: int) -> Make:
    """A matrix in shared memory: its buffer, and where in it, in bytes."""
    name, buffer, element, offset = match.groups()

    def make(names: Names) -> None:
        names[name] = (buffer, ELEMENT_BYTES * value(element, names) + value(offset or "0", names))

    return make


def _offset(match: re.Match, lanes: int) -> Make:
    def make(names: Names) -> None:
        buffer, offset = names[match[1]]
        names[match[1]] = (buffer, offset + value(match[2], names))

    return make


def _product(match: re.Match, lanes: int) -> Make:
    def make(names: Names) -> Event:
        reads: list[Read] = []
        for descriptor in re.findall(r"\bdesc_\w+", match.string):
            buffer, offset = names[descriptor]
            reads.append((buffer, _slot(buffer, offset // ELEMENT_BYTES, names), 0))
        ring, slot, _ = next(read for read in reads if read[0] != Q)
        return Event("product", ring, slot, reads=tuple(reads))

    return make


def _hold(match: re.Match, lanes: int) -> Make:
    """Of a range of the exponentials in a thread's registers, or of one."""
    event = Event(match[1].replace("_", " "), EXPONENTIALS, int(match[2]), int(match[3] or 0))
    return lambda names: event


def _shared(kind: str) -> Builder:
    """Access of the threads to a buffer, by the place that the first of them touches."""

    def builder(match: re.Match, lanes: int) -> Make:
        return lambda names: Event(kind, match[1], _slot(match[1], value(match[2], names), names))

    return builder


def _take(match: re.Match, lanes: int) -> Make:
    return lambda names: Event("take", TILE, value(match[1], names), blocks=(names[THREAD].rank,))


def _next_tile(match: re.Match, lanes: int) -> Make:
    def make(names: Names) -> Event:
        names[match[1]] = names[THREAD].next_tile(names[match[1]])
        return Event("read", TILE, value(match[2], names))

    return make


CALLS: tuple[tuple[str, re.Pattern[str], Builder], ...] = tuple(
    (kind, re.compile(pattern), builder)
    for kind, pattern, builder in (
        ("load", r"tl::cp_async_gs\w*<\d+>\(\(&\(\(\(\w+\*\)(\w+)_shared\)", _copy),
        ("commit", r"tl::cp_async_commit\(", _plain("commit")),
        ("wait", r"tl::cp_async_wait<(\d+)>", _plain("wait")),
        ("init fence", r"tl::fence_barrier_init\(", _plain("init fence")),
        ("sync", r"__syncthreads\(", _plain("sync")),
        ("sync", r"tl::cluster_sync\(", lambda match, lanes: lambda names: Event("sync", CLUSTER)),
        ("sync", r"tl::__sync_thread_partial\((.+)\);", _named_barrier("sync")),
        ("signal", r"tl::__named_barrier_arrive\((.+)\);", _named_barrier("signal")),
        ("products wait", r"tl::(?:warpgroup_wait|wait_wgmma)<(\d+)>", _plain("products wait")),
        ("barrier", r"^(\w+_(?:full|empty))\[(.+)\]\.(init|wait|arrive|expect_transaction)\((.*)\);$", _mbarrier),
        ("load", r"tl::tma_load(_multicast)?\((.+)\);", _tma_load),
        ("descriptor", rf"tl::initialize_wgmma_descriptor<.*>\((\w+), {MATRIX}\);", _descriptor),
        ("descriptor", r"tl::increase_descriptor_offset<int>\((\w+), (.+)\);", _offset),
        ("product", r"tl::wgmma_[rs]s<", _product),
        ("hold", r"tl_attention_(hold|hold_last)<(\d+)(?:, (\d+))?>\(", _hold),
        ("resume", r"tl_attention_resume\(", _plain("resume")),
        ("write", rf"^\*\(\w+\*\)\({IN_SHARED} \+ (.+)\) = ", _shared("write")),
        ("read", rf"= \*\(\w+\*\)\({IN_SHARED} \+ (.+)\);", _shared("read")),
        ("store", rf"tl::tma_store\(\w+, \(&\({IN_SHARED}\[(.+?)\]\)\),", _shared("store")),
        ("fence", r"tl::fence_proxy_async\(", _plain("fence")),
        ("stored", r"tl::tma_store_wait<(\d+), true>", _plain("stored")),
        ("take", r"^next_tile\[(.+)\] = ", _take),
        ("next", r"^(\w+) = next_tile\[(.+)\];", _next_tile),
        ("harmless", HARMLESS, lambda match, lanes: lambda names: None),
        ("unknown", r"sync|[Bb]arrier|arrive|wait|tl::tma", lambda match, lanes: lambda names: Event(match.string)),
    )
)
