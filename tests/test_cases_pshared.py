"""P in shared memory: where a warp puts it, its order with products, and every fault of that in generated code."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.kernels import Kernel
from code_mutants.reading import Code, prove
from mutations import shipped
from once import lowered, proved

from tl_attention.errors import ScheduleRefused
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.lowering.warp_specialized.device_code import STORE_P
from tl_attention.proof.generated.tiles import Tile
from tl_attention.schedule.schedule import Schedule


def changed(**keys: object) -> Schedule:
    """FlashAttention-3's order, P in shared memory."""
    return Schedule(**shipped()["fa3_overlap"].model_dump() | {"kernel": {"p_operand": "shared"}} | keys)


CHUNKED = changed(
    block_N=128,
    split={"cast": (48, 80)},
    group=[["cast.0", "cast.1"] if group == ("cast",) else group for group in shipped()["fa3_overlap"].group],
    kernel={"p_operand": "shared", "ping_pong": True, "output": "tma"},
)


class Chunked(Kernel):
    """The cast in two chunks, two warpgroups that take turns, the output by TMA."""

    @functools.cached_property
    def schedule(self) -> Schedule:
        return CHUNKED


KERNELS = {
    "three warpgroups": Kernel("experiments/p_shared/block_N_192", dtype="bfloat16", head_dim=64),
    "narrow panels": Kernel("experiments/p_shared/block_N_176", causal=True, head_dim=64),
    "chunks": Chunked("", causal=True, head_dim=64),
}
PUT = "tl_attention_store_p<"


def puts(source: str) -> list[int]:
    """The numbers, from 0, of the lines that put P, not of the function that they call."""
    lines = source.splitlines()
    return [number for number, line in enumerate(lines) if line.strip().startswith(PUT)]


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_accepted_and_every_line_that_puts_p_runs(name):
    kernel = KERNELS[name]
    refuse_unless_safe(kernel.schedule, 64)
    code, verdict = lowered(kernel), proved(kernel)
    found = puts(code.source)
    assert len(found) == (6 if name == "chunks" else 3 if kernel.causal else 2)
    assert {verdict.kinds[number] for number in found} == {"write, numbers: registers"}
    assert not set(verdict.unreached) & set(found)
    assert "acc_s_cast" not in code.source


def test_the_wait_for_mma1_comes_before_the_cast_that_overwrites_its_operand():
    """As with P in registers: the statements read and write the same. An order that cannot have it is refused."""
    with pytest.raises(
        ScheduleRefused, match=r"^cast\(t\) overwrites acc_s_cast before mma1\(t-1\), emitted later, has"
    ):
        refuse_unless_safe(changed(order=(-1, 0, 1, 2, 4, -1, 3)), 64)


# --- the device function ---------------------------------------------------------------------------------------------


@functools.cache
def c_expression(name: str) -> str:
    """What the device function's text says that a variable, or the address, is, as Python has it."""
    patterns = {"row": r"row = (.*);", "place": r"place = (.*);", "address": r':: "r"\((.*)\),\n'}
    [found] = re.findall(patterns[name], STORE_P)
    return found.replace("threadIdx.x", "x").replace("/", "//")


@pytest.mark.parametrize("columns", range(16, 257, 16))
def test_a_lane_puts_16_bytes_of_a_row_where_products_read_them(columns):
    """stmatrix: lane 8 n + r has the address of row r of matrix n, whose rows and columns are those of registers n."""
    tile = Tile("P", 64, columns, 1)
    taken = set()
    assert "panel = columns % 64 == 0 ? 64 : columns % 32 == 0 ? 32 : 16;" in STORE_P
    for x in range(128):
        names = {"x": x, "lane": x % 32, "panel": tile.panel, "columns": columns}
        names["row"] = eval(c_expression("row"), {}, names)
        names["own"] = eval(c_expression("place"), {}, names)
        for column in range(0, columns, 16):
            address = eval(c_expression("address"), {}, names | {"column": column})
            matrix, row = divmod(x % 32, 8)
            # Of registers column / 2 + 2 n and the next: columns from 8 (n / 2) on of rows from 8 (n % 2) on.
            origin = x // 32 * 16 + matrix % 2 * 8 + row, column + matrix // 2 * 8
            assert address == 2 * tile.place(*map(np.array, origin))
            taken.add(address)
    assert len(taken) == 64 * columns // 8


# --- faults ------------------------------------------------------------------------------------------------------------


Change = Callable[[str], str]


def last(pattern: str, replacement: str) -> Change:
    """In the last place that has it, which is in the loop over blocks that need no mask."""

    def change(source: str) -> str:
        found = list(re.finditer(pattern, source, re.MULTILINE))
        assert found, f"{pattern!r} matches nothing"
        return source[: found[-1].start()] + found[-1].expand(replacement) + source[found[-1].end() :]

    return change


def every(pattern: str, replacement: str) -> Change:
    def change(source: str) -> str:
        changed, found = re.subn(pattern, replacement, source, flags=re.MULTILINE)
        assert found, f"{pattern!r} matches nothing"
        return changed

    return change


def both(*changes: Change) -> Change:
    return lambda source: functools.reduce(lambda text, change: change(text), changes, source)


STORE = r"^ *tl_attention_store_p<.*\n"
FENCE = r"^ *tl::fence_proxy_async\(\);\n"
SYNC = r"^ *tl::__sync_thread_partial\(\(wg_2 \+ 4\), 128\);\n"
PLACE = r"\(\(\(int64_t\)wg_2\) \* \(int64_t\)12288\)"
DESC_A = r"(initialize_wgmma_descriptor)<1, 1, 64>(\((desc_a_\d+), \(&\(\(\(bfloat16_t\*\)P_shared)"
OWN_A = r"(increase_descriptor_offset<int>\(desc_a_\d+, )\(wg_2 \* 24576\)"
ALONG_A = r"\(\(\(ki_(\d) >> 2\) \* 8192\) \+ \(\(ki_\d & 3\) \* 32\)\)"
WAIT = r"^ *tl::wait_wgmma<0>\(\);\n(?=(?:.*\n){1,12} *tl_attention_store_p)"
# What becomes of the source, and the words of the refusal.
FAULTS: dict[str, tuple[Change, str]] = {
    "no fence": (last(FENCE, ""), r"expected fence"),
    "no fence in the prologue": (lambda s: re.sub(FENCE, "", s, count=1, flags=re.MULTILINE), r"expected fence"),
    "a fence by half of the threads": (
        last(FENCE, "if (((int)threadIdx.x) < 64) {\ntl::fence_proxy_async();\n}\n"),
        r"expected fence",
    ),
    "a fence before P is put": (last(rf"({STORE})({FENCE})", r"\2\1"), r"expected fence"),
    "a fence behind the barrier": (last(rf"({FENCE})({SYNC})", r"\2\1"), r"expected sync named barrier"),
    "no barrier": (last(SYNC, ""), r"expected sync named barrier\["),
    "a barrier of all warpgroups": (
        last(SYNC, "tl::__sync_thread_partial((wg_2 + 4), 384);\n"),
        r"expected sync named",
    ),
    "a barrier of one warp less": (last(SYNC, "tl::__sync_thread_partial((wg_2 + 4), 96);\n"), r"expected sync named"),
    "a barrier for all warpgroups in turn": (
        last(SYNC, "tl::__sync_thread_partial(4, 128);\n"),
        r"expected sync named",
    ),
    "the barriers of other warpgroups": (
        every(SYNC, "tl::__sync_thread_partial((((wg_2 + 1) % 3) + 4), 128);\n"),
        r"expected sync named barrier|both use named barrier",
    ),
    "an arrival that does not wait": (last(SYNC, "tl::__named_barrier_arrive((wg_2 + 4), 128);\n"), r"expected sync"),
    "P put where another warpgroup's is": (
        last(PLACE, "((int64_t)(((wg_2 + 1) % 3) * 12288))"),
        r"put P\[1\].*expected put P\[0\]",
    ),
    "P put where the first's is": (last(PLACE, "0"), r"put P\[0\] .*, expected put P\[1\]"),
    "P put 32 columns off": (last(PLACE, "((wg_2 * 12288) + 32)"), "32 elements behind the start of a slot"),
    "P put behind the last slot": (last(PLACE, "((wg_2 + 1) * 12288)"), r"put P\[1\].*expected put P\[0\]"),
    "P put in Q's place": (last(r"P_shared\)\[" + PLACE, "Q_shared)[0"), "puts P in Q, from where no product reads it"),
    "P not put": (last(STORE, ""), r"expected put P\["),
    "P put twice": (last(f"({STORE})", r"\1\1"), r"is put P\["),
    "P put by the first warpgroup alone": (last(f"({STORE})", r"if (wg_2 == 0) {\n\1}\n"), r"expected put P\[1\]"),
    "P put by half of a warpgroup": (
        last(f"({STORE})", r"if (((int)threadIdx.x) < 64) {\n\1}\n"),
        "64 of the 128 threads of warpgroup 0 of block 0 run it",
    ),
    "P put by the producer too": (
        lambda s: s.replace(
            "      turn = 0;\n", f"      turn = 0;\n{s.splitlines()[puts(s)[0]].replace('wg_2', '0')}\n", 1
        ),
        r"of the producer of block 0 is put P\[0\]|32 of the",
    ),
    "P put after its wait was left out": (last(WAIT, ""), r"expected products wait|is not fenced before"),
    "columns that are not put": (last(r"store_p<192, 0, 192", "store_p<192, 0, 176"), "is put P.*, expected put P"),
    "a tile of fewer columns": (last(r"store_p<192, 0, 192", "store_p<176, 0, 176"), "of a form that is not known"),
    "another dtype": (last(r"192, true>", "192, false>"), r"puts \(192, 'float16', 'acc_s'\)"),
    "registers that are not the scores'": (last(r"true>\(acc_s,", "true>(acc_o,"), "of a form that is not known"),
    "a product of another warpgroup's P": (
        last(OWN_A, r"\1(((wg_2 + 1) % 3) * 24576)"),
        "reads other columns of its operands",
    ),
    "a product of the first warpgroup's P": (last(OWN_A, r"\g<1>0"), "reads other columns of its operands"),
    "a product of P at the other's slot of Q": (last(OWN_A, r"\1(wg_2 * 8192)"), "reads other columns of its operands"),
    "a product of Q for P": (
        last(r"(desc_a_\d+, \(&\(\(\(bfloat16_t\*\))P_shared", r"\1Q_shared"),
        r"a product of \('Q'",
    ),
    "a product that reads P in a narrower swizzle": (
        last(DESC_A, r"\1<2, 1, 64>\2"),
        r"a product of \('P', \(2, 1, 64\)",
    ),
    "a product that reads P without a swizzle": (last(DESC_A, r"\1<0, 1, 64>\2"), r"a product of \('P', \(0, 1, 64\)"),
    "a product that reads P's rows half as far apart": (
        last(DESC_A, r"\1<1, 1, 32>\2"),
        r"a product of \('P', \(1, 1, 32\)",
    ),
    "a product that reads P's columns 64 bytes apart": (
        last(ALONG_A, r"(((ki_\1 >> 2) * 8192) + ((ki_\1 & 3) * 64))"),
        "reads other columns of its operands",
    ),
    "a product that reads P's panels half as far apart": (
        last(ALONG_A, r"(((ki_\1 >> 2) * 4096) + ((ki_\1 & 3) * 32))"),
        "reads other columns of its operands",
    ),
    "panels of P that overlap V": (
        lambda s: s.replace(
            "P_shared = ((void*)((char*)buf_dyn_shmem + 0))", "P_shared = ((void*)((char*)buf_dyn_shmem + 8192))"
        ),
        "buffers for load_",
    ),
    "another swizzle in the function": (
        lambda s: s.replace("(lane / 16 ^ row * panel / 64", "(lane / 16 ^ row * panel / 32"),
        "what stands before the kernel is not its prelude",
    ),
    "another warp's rows in the function": (
        lambda s: s.replace(
            "row = threadIdx.x / 32 * 16 + lane % 16;", "row = (threadIdx.x / 32 ^ 1) * 16 + lane % 16;"
        ),
        "what stands before the kernel is not its prelude",
    ),
}
IN_CHUNKS: dict[str, tuple[Change, str]] = {
    "the first chunk put for the second": (
        last(r"store_p<128, 48, 128", "store_p<128, 0, 48"),
        r"is put P.*, expected put P",
    ),
    "chunks in the other order": (
        last(r"(store_p<128, )0, 48(.*\n.*store_p<128, )48, 128", r"\g<1>48, 128\g<2>0, 48"),
        r"is put P.*, expected put P",
    ),
    "chunks that overlap": (last(r"store_p<128, 48, 128", "store_p<128, 32, 128"), r"is put P.*, expected put P"),
    "the second chunk behind the fence": (last(rf"({STORE})({FENCE})", r"\2\1"), r"expected put P|expected fence"),
    "no second chunk": (last(STORE, ""), r"expected put P"),
    "a barrier of both warpgroups": (
        last(SYNC, "tl::__sync_thread_partial(3, 256);\n"),
        r"expected sync named barrier",
    ),
}
CASES = {("three warpgroups", name): case for name, case in FAULTS.items()}
CASES |= {("chunks", name): case for name, case in IN_CHUNKS.items()}
CASES |= {("narrow panels", name): FAULTS[name] for name in ("no fence", "no barrier", "P not put", "P put twice")}


def faulty(kernel: str, change: Change) -> Code:
    code = lowered(KERNELS[kernel])
    source = change(code.source)
    assert source != code.source
    return replace(code, source=source)


@pytest.mark.parametrize("kernel,name", CASES)
def test_a_fault_is_refused(kernel, name):
    change, words = CASES[kernel, name]
    with pytest.raises(ScheduleRefused, match=words):
        prove(KERNELS[kernel].schedule, faulty(kernel, change))


def test_p_that_was_not_asked_for_is_refused():
    """Code that puts P in shared memory, where the schedule has it in registers."""
    kernel = KERNELS["three warpgroups"]
    plain = kernel.schedule.model_copy(
        update={"kernel": kernel.schedule.kernel.model_copy(update={"p_operand": "registers"})}
    )
    with pytest.raises(ScheduleRefused, match="'.*' stands before the kernel"):
        prove(plain, lowered(kernel))
