"""This module lists the calls of generated CUDA that are read, and itself reads the calls that order threads.

Each call stands beside an example of what matches its pattern. The calls that order threads are mbarriers, named
barriers, fences, the registers that warpgroups hand over, and the counter that hands out tiles.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tl_attention.codeproof.read.copies import COPY_CALLS, HAND_OVER, IN_GLOBAL
from tl_attention.codeproof.read.declarations import Declarations
from tl_attention.codeproof.read.expression import Expression, arguments
from tl_attention.codeproof.read.nodes import COUNTER, Effect
from tl_attention.codeproof.read.products import PRODUCT_CALLS
from tl_attention.codeproof.read.text import Form
from tl_attention.codeproof.run.run import Run, no_effect, numbered_call, recorder
from tl_attention.codeproof.run.threads import ThreadClass, any_nonzero, collapse
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.problem.packed import FEW, TILE_WORDS, TILES_TOLD, TOLD_WORDS, TURNS_FROM
from tl_attention.problem.warpgroup import WARP
from tl_attention.program.events import NAMED, TILE

# A thread's block in its cluster.
OWN_BLOCK = "tl::block_rank_in_cluster()"
# What a page is looked up in and by.
PAGE_TABLE = re.escape("(&(BlockTable[0])), entries, page_size, page_rows, pages")


def _mbarrier(match: re.Match[str], declared: Declarations) -> Effect:
    name, index, call, argument = match.groups()
    declared.barrier(name)
    kind = {"expect_transaction": "expect"}.get(call, call)
    if (argument == "") != (kind == "arrive") and kind != "arrive":
        raise SyntaxError(f"{call} of {name} with {argument or 'nothing'!r}")
    # An arrival is at the thread's own block unless it names another of the cluster.
    value = declared.expression(argument or (OWN_BLOCK if kind == "arrive" else "0"))
    made = recorder(kind, name, index=declared.expression(index), value=value)
    if (kind, name) != ("wait", f"{TILE}_full"):
        return made

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        made.act(run, threads, line)
        run.tiles.receive(threads)

    return Effect(act)


def _named(kind: str) -> Callable[[re.Match[str], Declarations], Effect | None]:
    def build(match: re.Match[str], declared: Declarations) -> Effect | None:
        given = [declared.expression(text) for text in arguments(match[1])]
        return recorder(kind, NAMED, index=given[0], value=given[1]) if len(given) == 2 else None

    return build


def _exchange(match: re.Match[str], declared: Declarations) -> Effect | None:
    """Returns the Effect of an AllReduce among four lanes, None unless it updates one variable in registers."""
    # All lanes of a warp must run it.
    if match[1] != match[3] or match[1] not in declared.registers:
        return None
    return recorder("exchange", value=int(match[2]))


def _draw(match: re.Match[str], declared: Declarations) -> Effect:
    name, place, counter, index, step, first = match.groups()
    declared.number(name)
    at, more = declared.expression(place), declared.expression(first)

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        slot = run.value(at, threads)
        run.record(threads, line, "take", name, index=slot)
        before = run.tiles.add(threads, counter, int(index), int(step))
        run.tiles.put(threads, name, 0, before + run.value(more, threads))

    return Effect(act)


def _drawn(match: re.Match[str], declared: Declarations) -> Effect | None:
    variable, name, place = match.groups()
    if name not in declared.numbers:
        return None
    # Of each tile there is one number, or all of its entry.
    at, of_a_tile = declared.expression(place), 1 if declared.numbers[name] < TOLD_WORDS else TOLD_WORDS

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        slot = run.value(at, threads)
        run.record(threads, line, "read", name, index=slot // of_a_tile)
        threads.names[variable] = run.tiles.get(threads, name, slot % of_a_tile)

    return Effect(act, frozenset({variable}))


def _count(match: re.Match[str], declared: Declarations) -> Effect:
    variable, counter, index, step, text = match.groups()
    last = declared.expression(text)

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        before = run.tiles.add(threads, counter, int(index), int(step))
        threads.names[variable] = run.arithmetic["equal"](before, run.value(last, threads)) * 1

    return Effect(act, frozenset({variable}))


def _reset(match: re.Match[str], declared: Declarations) -> Effect | None:
    counter, index, value = match.groups()
    if counter in declared.registers:
        return None
    return Effect(lambda run, threads, line: run.tiles.set(threads, counter, int(index), int(value)))


def _listed(match: re.Match[str], declared: Declarations) -> Effect | None:
    """Returns the Effect that sets a variable to a number that stands before the list's entries."""
    # The number of tiles, of those of sequences of few queries, or the first of the heads that take turns.
    variable, word = match[1], int(match[2])

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        listed, blocks = run.tiles.tile_list(threads), run.threads.place[threads.threads]
        read = {0: listed.count, FEW: listed.few, TURNS_FROM: listed.turns_from}[word]
        threads.names[variable] = collapse(read(blocks))

    return Effect(act, frozenset({variable}))


def _slot(text: str, declared: Declarations) -> tuple[str, Expression]:
    match = IN_GLOBAL.match(text)
    if not match or declared.numbers.get(match[1]) != TILES_TOLD * TOLD_WORDS:
        raise SyntaxError(f"{text[:80]!r} is no place for a tile's entry")
    return match[1], declared.expression(match[2])


def _hand_over(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect that puts a tile's entry, and its head, into shared memory, once for each warp."""
    given = arguments(match[1])
    source = IN_GLOBAL.match(given[1]) if len(given) == 3 else None
    if not source or source[1] != "Tiles":
        raise SyntaxError(f"a hand-over of a form that is not known: {match.string[:80]!r}")
    name, place = _slot(given[0], declared)
    entry, head = (declared.expression(text) for text in (source[2], given[2]))

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        values = (run.value(expression, threads) for expression in (place, entry, head))
        leaders, (at, word, of_head) = run.tiles.leaders(threads, *values)
        if any_nonzero(at % TOLD_WORDS) or any_nonzero(word % TILE_WORDS):
            raise Unsafe(f"line {line + 1} hands over what is no entry of the list, or where none belongs")
        words = run.tiles.tile_list(threads).words(run.threads.place[leaders.threads], word // TILE_WORDS - 1)
        run.record(threads, line, HAND_OVER, name, index=run.value(place, threads) // TOLD_WORDS)
        for index, value in enumerate((*words, of_head)):
            run.tiles.put(leaders, name, index, value)

    return Effect(act)


def _hand_over_none(match: re.Match[str], declared: Declarations) -> Effect:
    name, place = _slot(match[1], declared)

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        leaders, (at,) = run.tiles.leaders(threads, run.value(place, threads))
        if any_nonzero(at % TOLD_WORDS):
            raise Unsafe(f"line {line + 1} hands over no tile where no entry belongs")
        run.record(threads, line, HAND_OVER, name, index=run.value(place, threads) // TOLD_WORDS)
        for index in range(TOLD_WORDS):
            run.tiles.put(leaders, name, index, -1)

    return Effect(act)


def _page_shifts(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect of a look-up of as many keys as a warp has lanes, one box behind the other.

    Its variable has another number in each lane, which no expression may read: what is known of it is the first key and
    the keys of a box, under names that no variable has.
    """
    variable, *given = match.groups()
    first, box = map(declared.expression, given)
    names = _of_lanes(variable)

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        threads.names.pop(variable, None)
        threads.names |= zip(names, (run.value(first, threads), run.value(box, threads)))

    return Effect(act, frozenset({variable, *names}))


def _page_shift(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect that sets a variable to what the block table says of a key."""
    variable, key = match[1], declared.expression(match[2])

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        threads.names[variable] = run.tiles.page_shift(run.value(key, threads), threads.names)

    return Effect(act, frozenset({variable}))


def _shift_of(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect that sets a variable to what the block table says of the key that a lane has looked up."""
    variable, looked_up, lane = match[1], _of_lanes(match[2]), declared.expression(match[3])

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        number = run.value(lane, threads)
        if not 0 <= number < WARP or not threads.names.keys() >= {*looked_up}:
            raise Unsafe(f"line {line + 1} takes from lane {number} what none has looked up")
        if not threads.whole_warps(run.threads.lanes):
            raise Unsafe(f"line {line + 1} takes from a lane that may not be there")
        first, box = (threads.names[name] for name in looked_up)
        threads.names[variable] = run.tiles.page_shift(first + number * box, threads.names)

    return Effect(act, frozenset({variable}))


def _of_lanes(variable: str) -> tuple[str, str]:
    return f"{variable}: first key", f"{variable}: keys of a box"


def _draw_number(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect that takes a number from the counter, plus another, once for each warp.

    Lane 0 alone has it: no expression may read the variable, and the number has a name that no variable has.
    """
    variable, counter, index, text = match.groups()
    first, name = declared.expression(text), _of_lane_0(variable)

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        leaders, (more,) = run.tiles.leaders(threads, run.value(first, threads))
        number = run.tiles.add(leaders, counter, int(index), 1) + more
        lanes = run.threads.lanes
        threads.names.pop(variable, None)
        threads.names[name] = collapse(np.repeat(number, lanes)) if isinstance(number, np.ndarray) else number

    return Effect(act, frozenset({variable, name}))


def _of_all_lanes(match: re.Match[str], declared: Declarations) -> Effect:
    """Returns the Effect that sets a variable to what lane 0 has drawn, in all lanes."""
    variable, drawn = match[1], _of_lane_0(match[2])

    def act(run: Run, threads: ThreadClass, line: int) -> None:
        if drawn not in threads.names or not threads.whole_warps(run.threads.lanes):
            raise Unsafe(f"line {line + 1} takes from lane 0 what it has not drawn, or is not there to give")
        threads.names[variable] = threads.names[drawn]

    return Effect(act, frozenset({variable}))


def _of_lane_0(variable: str) -> str:
    return f"{variable}: of lane 0"


CALLS = (
    # cudaGridDependencySynchronize();
    Form(
        COUNTER,
        re.compile(r"cudaGridDependencySynchronize\(\);$"),
        lambda match, declared: Effect(lambda run, threads, line: run.tiles.wait_for_list(threads)),
    ),
    # cudaTriggerProgrammaticLaunchCompletion();
    Form(COUNTER, re.compile(r"cudaTriggerProgrammaticLaunchCompletion\(\);$"), no_effect),
    # row_tiles = Tiles[0];
    Form(COUNTER, re.compile(rf"(\w+) = Tiles\[(0|{FEW}|{TURNS_FROM})\];$"), _listed),
    # tl_attention_hand_over((&(next_tile[((turn_2 & 3) * 9)])), (&(Tiles[...])), head);
    Form(COUNTER, re.compile(r"tl_attention_hand_over\((.+)\);$"), _hand_over),
    # tl_attention_hand_over_none((&(next_tile[0])));
    Form(COUNTER, re.compile(r"tl_attention_hand_over_none\((.+)\);$"), _hand_over_none),
    # shifts = tl_attention_page_shifts((&(BlockTable[0])), entries, page_size, page_rows, pages, (k_begin + 128), 16);
    Form("page", re.compile(rf"(\w+) = tl_attention_page_shifts\({PAGE_TABLE}, (.+), (\d+)\);$"), _page_shifts),
    # shift = tl_attention_shift_of(shifts, box);
    Form("page", re.compile(r"(\w+) = tl_attention_shift_of\((\w+), (.+)\);$"), _shift_of),
    # shift = tl_attention_page_shift((&(BlockTable[0])), entries, page_size, page_rows, pages, (k_begin_1 + 128));
    Form("page", re.compile(rf"(\w+) = tl_attention_page_shift\({PAGE_TABLE}, (.+)\);$"), _page_shift),
    # number = tl_attention_draw((&(TileCounter[0])), workers);
    Form(COUNTER, re.compile(r"(\w+) = tl_attention_draw\(\(&\((\w+)\[(\d+)\]\)\), (.+)\);$"), _draw_number),
    # of_all = tl_attention_drawn(drawn);
    Form(COUNTER, re.compile(r"(\w+) = tl_attention_drawn\((\w+)\);$"), _of_all_lanes),
    # K_full[((base_2 + j) & 1)].wait(((((base_2 + j) & 3) >> 1) ^ 1));     Q_full[0].init(32);
    # K_empty[(base_3 & 1)].arrive();    K_empty[(base_3 & 1)].arrive(rank);    V_full[0].expect_transaction(32768);
    Form(
        "mbarrier",
        re.compile(r"(\w+_(?:full|empty))\[(.+)\]\.(init|wait|arrive|expect_transaction)\((.*)\);$"),
        _mbarrier,
    ),
    numbered_call("init fence")(r"tl::fence_barrier_init\(\);$"),
    numbered_call("sync")(r"__syncthreads\(\);$"),
    numbered_call("cluster sync")(r"tl::cluster_sync\(\);$"),
    # tl::__sync_thread_partial((wg_2 + 1), 256);    tl::__named_barrier_arrive((2 - wg_2), 256);
    Form("named barrier", re.compile(r"tl::__sync_thread_partial\((.+)\);$"), _named("sync")),
    Form("named barrier", re.compile(r"tl::__named_barrier_arrive\((.+)\);$"), _named("signal")),
    numbered_call("fence")(r"tl::fence_proxy_async\(\);$"),
    numbered_call("fewer registers")(r"tl::warpgroup_reg_dealloc<(\d+)>\(\);$"),
    numbered_call("more registers")(r"tl::warpgroup_reg_alloc<(\d+)>\(\);$"),
    # scores_max[i_5] = tl::AllReduce<tl::MaxOp, 4, 1, 0, tl::NamedBarrier<128>>::run(scores_max[i_5]);
    Form(
        "exchange, numbers: arithmetic",
        re.compile(
            r"(\w+)\[\w+\] = tl::AllReduce<tl::(?:Max|Sum)Op, 4, 1, 0, tl::NamedBarrier<(\d+)>>::run\((\w+)\[\w+\]\);$"
        ),
        _exchange,
    ),
    # tl::prefetch_tma_descriptor(K_desc);
    Form("prefetch", re.compile(r"tl::prefetch_tma_descriptor\((\w+_desc)\);$"), no_effect),
    # next_tile[(turn & 1)] = (AtomicAddRet((&(TileCounter[0])), 1) + workers);
    Form(COUNTER, re.compile(r"(\w+)\[(.+)\] = \(AtomicAddRet\(\(&\((\w+)\[(\d+)\]\)\), (\d+)\) \+ (.+)\);$"), _draw),
    # tile = next_tile[(turn & 1)];
    Form(COUNTER, re.compile(r"(\w+) = (\w+)\[(.+)\];$"), _drawn),
    # bool if_condition = (AtomicAddRet((&(TileCounter[1])), 1) == (workers - 1));
    Form(COUNTER, re.compile(r"bool (\w+) = \(AtomicAddRet\(\(&\((\w+)\[(\d+)\]\)\), (\d+)\) == (.+)\);$"), _count),
    # TileCounter[0] = 0;
    Form(COUNTER, re.compile(r"(\w+)\[(\d+)\] = (\d+);$"), _reset),
    *COPY_CALLS,
    *PRODUCT_CALLS,
)
