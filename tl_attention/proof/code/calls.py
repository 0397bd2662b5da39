"""This module lists the calls of generated CUDA that are read, and itself reads the calls that order threads.

Each call stands beside an example of what matches its pattern. The calls that order threads are mbarriers, named
barriers, fences, the registers that warpgroups hand over, and the counter that hands out tiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tl_attention.proof.code.copies import COPY_CALLS
from tl_attention.proof.code.declarations import Declared
from tl_attention.proof.code.expression import arguments
from tl_attention.proof.code.nodes import Made
from tl_attention.proof.code.products import PRODUCT_CALLS
from tl_attention.proof.code.run import Run, nothing, plain, seen
from tl_attention.proof.code.text import Call
from tl_attention.proof.code.threads import Class
from tl_attention.proof.events import NAMED

COUNTER = "counter"
# A thread's block in its cluster.
OWN_BLOCK = "tl::block_rank_in_cluster()"


def _mbarrier(match: re.Match[str], declared: Declared) -> Made:
    name, index, call, argument = match.groups()
    declared.barrier(name)
    kind = {"expect_transaction": "expect"}.get(call, call)
    if (argument == "") != (kind == "arrive") and kind != "arrive":
        raise SyntaxError(f"{call} of {name} with {argument or 'nothing'!r}")
    # An arrival is at the thread's own block unless it names another of the cluster.
    value = declared.expression(argument or (OWN_BLOCK if kind == "arrive" else "0"))
    return seen(kind, name, index=declared.expression(index), value=value)


def _named(kind: str) -> Callable[[re.Match[str], Declared], Made | None]:
    def build(match: re.Match[str], declared: Declared) -> Made | None:
        given = [declared.expression(text) for text in arguments(match[1])]
        return seen(kind, NAMED, index=given[0], value=given[1]) if len(given) == 2 else None

    return build


def _exchange(match: re.Match[str], declared: Declared) -> Made | None:
    """Returns the Made of an AllReduce among four lanes, or None unless it updates one variable in registers.

    All lanes of a warp must run it.
    """
    if match[1] != match[3] or match[1] not in declared.registers:
        return None
    return seen("exchange", value=int(match[2]))


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
        # Where each block has a problem of its own, the block is the last one there.
        threads.names[variable] = 1 if run.lengths.ends and not run.whole else (found == int(last)) * 1

    return Made(act, frozenset({variable}))


def _reset(match: re.Match[str], declared: Declared) -> Made | None:
    counter, index, value = match.groups()
    if counter in declared.registers:
        return None
    return Made(lambda run, threads, line: run.set(threads, counter, int(index), int(value)))


CALLS = (
    # K_full[((base_2 + j) & 1)].wait(((((base_2 + j) & 3) >> 1) ^ 1));     Q_full[0].init(32);
    # K_empty[(base_3 & 1)].arrive();    K_empty[(base_3 & 1)].arrive(rank);    V_full[0].expect_transaction(32768);
    Call(
        "mbarrier",
        re.compile(r"(\w+_(?:full|empty))\[(.+)\]\.(init|wait|arrive|expect_transaction)\((.*)\);$"),
        _mbarrier,
    ),
    plain("init fence")(r"tl::fence_barrier_init\(\);$"),
    plain("sync")(r"__syncthreads\(\);$"),
    plain("cluster sync")(r"tl::cluster_sync\(\);$"),
    # tl::__sync_thread_partial((wg_2 + 1), 256);    tl::__named_barrier_arrive((2 - wg_2), 256);
    Call("named barrier", re.compile(r"tl::__sync_thread_partial\((.+)\);$"), _named("sync")),
    Call("named barrier", re.compile(r"tl::__named_barrier_arrive\((.+)\);$"), _named("signal")),
    plain("fence")(r"tl::fence_proxy_async\(\);$"),
    plain("fewer registers")(r"tl::warpgroup_reg_dealloc<(\d+)>\(\);$"),
    plain("more registers")(r"tl::warpgroup_reg_alloc<(\d+)>\(\);$"),
    # scores_max[i_5] = tl::AllReduce<tl::MaxOp, 4, 1, 0, tl::NamedBarrier<128>>::run(scores_max[i_5]);
    Call(
        "exchange, numbers: arithmetic",
        re.compile(
            r"(\w+)\[\w+\] = tl::AllReduce<tl::(?:Max|Sum)Op, 4, 1, 0, tl::NamedBarrier<(\d+)>>::run\((\w+)\[\w+\]\);$"
        ),
        _exchange,
    ),
    # tl::prefetch_tma_descriptor(K_desc);
    Call("prefetch", re.compile(r"tl::prefetch_tma_descriptor\((\w+_desc)\);$"), nothing),
    # next_tile[(turn & 1)] = (AtomicAddRet((&(TileCounter[0])), 1) + 132);
    Call(COUNTER, re.compile(r"(\w+)\[(.+)\] = \(AtomicAddRet\(\(&\((\w+)\[(\d+)\]\)\), (\d+)\) \+ (\d+)\);$"), _draw),
    # tile = next_tile[(turn & 1)];
    Call(COUNTER, re.compile(r"(\w+) = (\w+)\[(.+)\];$"), _drawn),
    # bool if_condition = (AtomicAddRet((&(TileCounter[1])), 1) == 131);
    Call(COUNTER, re.compile(r"bool (\w+) = \(AtomicAddRet\(\(&\((\w+)\[(\d+)\]\)\), (\d+)\) == (\d+)\);$"), _count),
    # TileCounter[0] = 0;
    Call(COUNTER, re.compile(r"(\w+)\[(\d+)\] = (\d+);$"), _reset),
    *COPY_CALLS,
    *PRODUCT_CALLS,
)
