"""Calls on the counter that hands out tiles, and on the numbers of tiles that go through shared memory."""

from __future__ import annotations

import re

from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class

COUNTER = "counter"


def _draw(match: re.Match[str], declared: Declared) -> Made:
    name, place, counter, index, step, first = match.groups()
    declared.number(name)
    at, more = declared.expression(place), int(first)

    def act(run: Run, threads: Class, line: int) -> None:
        slot = run.value(at, threads)
        run.see(threads, line, "take", name, index=slot)
        run.put(threads, name, slot, run.add(threads, counter, int(index), int(step)) + more)

    return Made(act)


def _drawn(match: re.Match[str], declared: Declared) -> Made | None:
    variable, name, place = match.groups()
    if name not in declared.numbers:
        return None
    at = declared.expression(place)

    def act(run: Run, threads: Class, line: int) -> None:
        slot = run.value(at, threads)
        run.see(threads, line, "read", name, index=slot)
        threads.names[variable] = run.get(threads, name, slot)

    return Made(act, frozenset({variable}))


def _count(match: re.Match[str], declared: Declared) -> Made:
    variable, counter, index, step, last = match.groups()

    def act(run: Run, threads: Class, line: int) -> None:
        found = run.add(threads, counter, int(index), int(step))
        # Where each block is of a problem of its own, it is the last one there.
        threads.names[variable] = 1 if run.lengths.ends and not run.whole else (found == int(last)) * 1

    return Made(act, frozenset({variable}))


def _reset(match: re.Match[str], declared: Declared) -> Made | None:
    counter, index, value = match.groups()
    if counter in declared.registers:
        return None
    return Made(lambda run, threads, line: run.set(threads, counter, int(index), int(value)))


COUNTER_CALLS = (
    # next_tile[(turn & 1)] = (AtomicAddRet((&(TileCounter[0])), 1) + 132);
    Call(COUNTER, re.compile(r"(\w+)\[(.+)\] = \(AtomicAddRet\(\(&\((\w+)\[(\d+)\]\)\), (\d+)\) \+ (\d+)\);$"), _draw),
    # tile = next_tile[(turn & 1)];
    Call(COUNTER, re.compile(r"(\w+) = (\w+)\[(.+)\];$"), _drawn),
    # bool if_condition = (AtomicAddRet((&(TileCounter[1])), 1) == 131);
    Call(COUNTER, re.compile(r"bool (\w+) = \(AtomicAddRet\(\(&\((\w+)\[(\d+)\]\)\), (\d+)\) == (\d+)\);$"), _count),
    # TileCounter[0] = 0;
    Call(COUNTER, re.compile(r"(\w+)\[(\d+)\] = (\d+);$"), _reset),
)
