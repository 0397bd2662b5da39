"""Calls that order threads: mbarriers, named barriers, fences, and the registers that warpgroups hand over."""

from __future__ import annotations

import re
from collections.abc import Callable

from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.expression import arguments
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class


def plain(kind: str) -> Callable[[str], Call]:
    """A call that has no more to it than numbers in its text, which become `value`."""

    def named(pattern: str) -> Call:
        def build(match: re.Match[str], declared: Declared) -> Made:
            value = int(match[1]) if match.groups() else 0
            return Made(lambda run, threads, line: run.see(threads, line, kind, value=value))

        return Call(kind, re.compile(pattern), build)

    return named


def _mbarrier(match: re.Match[str], declared: Declared) -> Made:
    name, index, call, argument = match.groups()
    declared.barrier(name)
    kind = {"expect_transaction": "expect"}.get(call, call)
    if (argument == "") != (kind == "arrive") and kind != "arrive":
        raise SyntaxError(f"{call} of {name} with {argument or 'nothing'!r}")
    at, value = declared.expression(index), declared.expression(argument or "0")

    def act(run: Run, threads: Class, line: int) -> None:
        given = run.value(value, threads) if argument else run.rank(threads) if kind == "arrive" else 0
        run.see(threads, line, kind, name, index=run.value(at, threads), value=given)

    return Made(act)


def _named(kind: str) -> Callable[[re.Match[str], Declared], Made | None]:
    def build(match: re.Match[str], declared: Declared) -> Made | None:
        given = [declared.expression(text) for text in arguments(match[1])]
        if len(given) != 2:
            return None

        def act(run: Run, threads: Class, line: int) -> None:
            barrier, count = (run.value(expression, threads) for expression in given)
            run.see(threads, line, kind, "named barrier", index=barrier, value=count)

        return Made(act)

    return build


def _exchange(match: re.Match[str], declared: Declared) -> Made | None:
    """Of four lanes: shuffles, which all lanes of a warp must run."""
    if match[1] != match[3] or match[1] not in declared.registers:
        return None
    return Made(lambda run, threads, line: run.see(threads, line, "exchange", value=int(match[2])))


def nothing(match: re.Match[str], declared: Declared) -> Made:
    """What has no effect that counts."""
    return Made(lambda run, threads, line: None)


BARRIER_CALLS = (
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
)
