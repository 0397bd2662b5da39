"""Measures one SM of a Hopper GPU by microbenchmarks: how long instructions, barriers and copies take.

The benchmarks are `probes.cu`, one TileLang kernel that runs one of them in each launch. All times are cycles of the
SM's clock. `python tools/measure.py probes` prints what `measure` returns as JSON.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import Any

import click

from tl_attention.errors import InputError
from tl_attention.lab.measure.device import card_at_hand, visible_gpus
from tl_attention.problem.card import HOPPER

# The probes, in the order of the kernel's numbers. Those of CHAIN + a probe are its dependent chain.
MIXED = ("FFMA_EX2", "EX2_FFMA", "EX2_FADD", "FMNMX_FFMA", "FFMA_THREE", "SOFTMAX")
VECTOR = ("FFMA", "FMUL", "FADD", "FMNMX", "EX2", "CVT", "SHFL", "LOP3", "IMAD", "MOV", *MIXED)
OTHERS = (
    *("BURST", "BURST8", "BURST24", "BURST_EACH", "TURNS", "NO_TURNS", "NAMED", "MBARRIER", "READY", "STORE", "COPY"),
    *("COPIES", "QUEUE"),
)
CHAIN, BURST, NO_PROBE = 32, 64, 255
BESIDE = ("FFMA", "FFMA_THREE", "FMNMX", "EX2", "CVT", "FFMA_EX2", "EX2_FFMA", "EX2_FADD", "SOFTMAX")
CHAINED = ("FFMA", "FADD", "FMNMX", "EX2", "CVT", "SHFL")
NUMBERS = {name: number for number, name in enumerate(VECTOR)}
NUMBERS |= {f"CHAIN_{name}": CHAIN + NUMBERS[name] for name in CHAINED}
NUMBERS |= {name: BURST + number for number, name in enumerate(OTHERS)} | {"NONE": NO_PROBE}
# Instructions of a loop's body, and of the body that moves; what of a mixed body is counted: 4 FFMA and an EX2, say.
BODY, MOVES = 480, 193
COUNTED = {
    "MOV": MOVES,
    "FFMA_EX2": BODY // 5,
    "EX2_FFMA": BODY // 2,
    "EX2_FADD": BODY // 2,
    "FMNMX_FFMA": BODY // 2,
    "SOFTMAX": BODY * 2 // 15,
}
# Slow instructions need fewer bodies: beside products all must end before these do.
BODIES, SLOW_BODIES, SLOW = 40, 10, ("EX2", "SHFL", "FFMA_EX2", "EX2_FFMA", "EX2_FADD")
# What warpgroup 1 does meanwhile: nothing, products with 176 columns of A in shared memory, with 128 of A in registers.
ALONE, SS, RS = range(3)
# Products between two marks of a warpgroup that multiplies all the time, and how many times.
CHUNK, CHUNKS = 32, 60
# Numbers that a warp can note, and the one that says "no answer".
WARPS, MARKS, NONE = 8, 64, 0xFFFFFFFF
# Products of each of two warpgroups that share the tensor pipe's queue, and by how many cycles the second one is late.
QUEUED, DELAYS = 19, (60, 130, 200, 300, 400, 700, 1100)
# Copies in flight at once, and the bytes of each.
SLOTS, SLOT = 4, 16384
# Bytes of shared memory: A of 64 rows and 128 columns, B of up to 256 rows and 128, or of 128 and 192; mbarriers.
B_AT, BARRIERS_AT = 16384, 16384 + 65536 + 65536
SHARED = BARRIERS_AT + 1024
# Bytes in global memory: of the buffer, of a part that the L2 holds, and where the part begins that empties the L2.
BUFFER, COMMON, FLUSHED = 1 << 30, 8 << 20, 512 << 20
# Named barriers, and how long a wait may last.
ALIGN, TURN, PATIENCE = 1, 2, 1 << 26
# Those of these numbers that the kernel knows.
SIZES = (
    *("CHAIN", "BODY", "MOVES", "CHUNK", "CHUNKS", "MARKS", "SLOTS", "SLOT", "B_AT", "BARRIERS_AT", "ALIGN", "TURN"),
    *("PATIENCE", "QUEUED"),
)
SOURCE = Path(__file__).with_suffix(".cu")
WIDTHS = (64, 96, 128, 160, 176, 192, 256)
# Launches of a probe, and what a probe repeats inside: the first times its instructions come from far.
REPEATS, ROUNDS = 5, 6
FAILED = -1.0

# The marks of each warp of a block.
Marks = list[list[int]]
Named = tuple[str, float | list[float]]


def prelude() -> str:
    """Returns the text of the kernel's device functions, with the numbers that stand here."""
    names = [f"{name} = {NUMBERS[name]}" for name in (*VECTOR, *OTHERS)]
    sizes = "".join(f"constexpr int {name} = {globals()[name]};\n" for name in SIZES)
    enums = f"enum Probe {{{', '.join(names)}}};\nenum Beside {{ALONE, SS, RS}};\n"
    products = "".join(product_text(width) for width in WIDTHS)
    return f"{enums}{sizes}constexpr unsigned NONE = {NONE:#x};\ntemplate <int N> struct Wgmma;\n{products}{SOURCE.read_text()}"


def product_text(width: int) -> str:
    """Returns the text of Wgmma<width>: C++ cannot write so many operands of an asm but one by one."""
    sums = width // 2
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(sums))

    def function(name: str, parameter: str, a: str, inputs: str, b: int, immediates: str) -> str:
        places = ", ".join(f"%{i}" for i in range(sums))
        return (
            f"  static __device__ __forceinline__ void {name}(float* d, {parameter}, unsigned long long b) {{\n"
            f'    asm volatile("{{.reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned.m64n{width}k16.f32.bf16.bf16 "\n'
            f'      "{{{places}}}, {a}, %{b}, p, {immediates};}}"\n      : {outputs} : {inputs}, "l"(b));\n  }}\n'
        )

    fragment = "{" + ", ".join(f"%{sums + i}" for i in range(4)) + "}"
    registers = ", ".join(f'"r"(a[{i}])' for i in range(4))
    shared = function("ss", "unsigned long long a", f"%{sums}", '"l"(a)', sums + 1, "1, 1, 0, 0")
    own = function("rs", "const unsigned* a", fragment, registers, sums + 4, "1, 1, 0")
    return f"template <> struct Wgmma<{width}> {{\n{shared}{own}}};\n"


def probes_kernel() -> Any:
    """Returns a TileLang prim_func that runs a probe on `blocks` blocks, as `tl_attention_probe` in probes.cu says."""
    import tilelang.language as T

    blocks = T.dynamic("blocks")

    @T.prim_func  # type: ignore[untyped-decorator]
    def probes(
        Marks: T.Tensor((blocks, WARPS, MARKS), "int32"),  # type: ignore[valid-type]
        Data: T.Tensor((BUFFER,), "uint8"),  # type: ignore[valid-type]
        probe: T.int32,
        groups: T.int32,
        beside: T.int32,
        from_registers: T.int32,
        iterations: T.int32,
        size: T.int32,
        step: T.int32,
    ) -> None:
        with T.Kernel(blocks, threads=32 * WARPS, prelude=prelude()) as block:
            shared = T.alloc_shared([SHARED], "uint8", scope="shared.dyn")
            T.call_extern(
                "handle", "tl_attention_probe", Marks.data, Data.data, T.address_of(shared[0]), block, probe, groups, beside,
                from_registers, iterations, size, step,
            )  # fmt: skip

    return probes


@functools.cache
def compile_probes(arch: str = HOPPER.arch) -> Any:
    """Compiles the probes for an arch, and returns the kernel."""
    from tl_attention.compiler.toolchain import use_nvcc
    from tl_attention.lab.measure.mma_peak import compiled

    with use_nvcc():
        return compiled(probes_kernel(), arch)


def since(start: int, mark: int) -> int:
    """Returns the cycles from one mark to another, from -2^31 to 2^31; a mark is the lower half of the clock."""
    return (mark - start + (1 << 31)) % (1 << 32) - (1 << 31)


def span(warps: Marks) -> float:
    """Returns the cycles from the first warp's mark 0 to the last warp's mark 1, FAILED where a warp gave up."""
    if any(NONE in warp[:2] for warp in warps):
        return FAILED
    start = warps[0][0]
    return max(since(start, warp[1]) for warp in warps) - min(since(start, warp[0]) for warp in warps)


def repeated(measured: Callable[..., float], *given: Any, choose: Callable[[list[float]], float] = median) -> float:
    """Returns the median of what a function measures, or what `choose` chooses; FAILED where it failed once."""
    values = [measured(*given) for _ in range(REPEATS)]
    return FAILED if FAILED in values else round(choose(values), 3)


class Probes:
    """Probes are the compiled kernel and its tensors on this process's GPU."""

    def __init__(self) -> None:
        import torch

        card = card_at_hand()
        self.kernel, self.sms = compile_probes(card.arch), card.sms
        self.marks = torch.empty((self.sms, WARPS, MARKS), dtype=torch.int32, device="cuda")
        self.data = torch.zeros(BUFFER, dtype=torch.uint8, device="cuda")

    def blocks(
        self, probe: str, iterations: int, *, blocks: int = 1, groups: int = 1, beside: int = ALONE,
        from_registers: bool = False, size: int = 0, step: int = 0,
    ) -> list[Marks]:  # fmt: skip
        """Runs a probe once, and returns each block's marks."""
        marks = self.marks[:blocks]
        marks.fill_(-1)
        arguments = (NUMBERS[probe], groups, beside, int(from_registers), iterations, size, step)
        self.kernel(marks, self.data, *arguments)
        found: list[Marks] = (marks.cpu().long() & 0xFFFFFFFF).tolist()
        return found

    def one(self, probe: str, iterations: int = ROUNDS, **options: Any) -> Marks:
        """Runs a probe once on one block, and returns its marks."""
        return self.blocks(probe, iterations, **options)[0]

    def burst(self, probe: str, kind: str, width: int) -> list[float]:
        """Returns the marks of products on an idle tensor pipe, in cycles from the first to the end of all."""
        warp = self.one(probe, size=width, from_registers=kind == "rs")[0]
        return [since(warp[0], mark) for mark in warp[: 14 if probe == "BURST_EACH" else 3]]

    def products(self) -> Iterator[Named]:
        """Yields what products take, alone on an idle tensor pipe and one behind the other."""

        def took(probe: str, kind: str, width: int) -> float:
            return self.burst(probe, kind, width)[-1]

        for kind in ("ss", "rs"):
            for width in WIDTHS:
                short, long = (repeated(took, probe, kind, width, choose=min) for probe in ("BURST8", "BURST24"))
                yield f"wgmma_{kind}_interval_{width}", (long - short) / 16
                if width in (128, 176):
                    yield f"wgmma_{kind}_group8_{width}", short
                    yield f"wgmma_{kind}_latency_{width}", repeated(took, "BURST", kind, width, choose=min)
                if width in (128, 176, 256):
                    runs = [self.burst("BURST_EACH", kind, width) for _ in range(REPEATS)]
                    yield f"wgmma_{kind}_issue_{width}", [median(marks) for marks in zip(*runs)]
        for name, beside in (("ss_stream_176", SS), ("rs_stream_128", RS)):
            warp = self.one("NONE", beside=beside)[4]
            yield f"wgmma_{name}", round(since(warp[5], warp[CHUNKS - 5]) / CHUNK / (CHUNKS - 10), 3)

    def queues(self) -> Iterator[Named]:
        """Yields when two warpgroups' products of 176 columns have ended, the first's and the second's, by delay."""
        for delay in DELAYS:
            runs = [self.one("QUEUE", ROUNDS + n % 2, groups=2, size=delay) for n in range(REPEATS)]
            yield f"two_queues_{delay}", [median(warps[warp][QUEUED] for warps in runs) for warp in (0, 4)]

    def vector(self) -> Iterator[Named]:
        """Yields the cycles of each instruction of a warp: of one or two in a quarter, in chains, beside products."""

        def took(probe: str, bodies: int, groups: int) -> float:
            return span(self.one(probe, bodies, groups=groups)[: 4 * groups])

        for probe in VECTOR:
            bodies = SLOW_BODIES if probe in SLOW else BODIES
            number = COUNTED.get(probe, BODY) * bodies
            for groups, ending in ((1, ""), (2, "_2")):
                yield f"{probe.lower()}{ending}", round(repeated(took, probe, bodies, groups) / number, 3)
            if probe in CHAINED:
                chain = repeated(took, f"CHAIN_{probe}", SLOW_BODIES, 1)
                yield f"{probe.lower()}_latency", round(chain / BODY / SLOW_BODIES, 3)
            if probe not in BESIDE:
                continue
            for ending, beside in (("beside_ss", SS), ("beside_rs", RS)):
                runs = [self.one(probe, bodies, beside=beside) for _ in range(REPEATS)]
                spans, intervals = [span(warps[:4]) for warps in runs], [interval_during(warps) for warps in runs]
                failed = FAILED in spans or FAILED in intervals
                yield f"{probe.lower()}_{ending}", FAILED if failed else round(median(spans) / number, 3)
                yield f"{probe.lower()}_{ending}_interval", FAILED if failed else round(median(intervals), 3)

    def barriers(self) -> Iterator[Named]:
        """Yields what it takes from a warpgroup's arrival to the end of another's wait, and what rounds of two take."""

        def handover(probe: str) -> float:
            warps = self.one(probe, groups=2)
            if any(warp[0] == NONE for warp in warps):
                return FAILED
            times = [since(warps[0][0], warp[0]) for warp in warps]
            return median(times[4:]) - max(times[:4])

        def round_takes(probe: str, passes: int) -> float:
            warp = self.one(probe, 60, groups=2, size=passes)[0]
            return since(warp[5], warp[55]) / 50

        def looked(first: int) -> float:
            return since(*self.one("READY")[0][first : first + 2])

        def stored() -> float:
            return span(self.one("STORE")[:4])

        yield "named_barrier_handover", repeated(handover, "NAMED")
        yield "mbarrier_handover", repeated(handover, "MBARRIER")
        yield "mbarrier_ready", repeated(looked, 0, choose=min)
        yield "clock_read", repeated(looked, 1, choose=min)
        yield "global_store", repeated(stored)
        for name, probe in (("turns", "TURNS"), ("free", "NO_TURNS")):
            for passes in (0, 5, 7):
                yield f"two_groups_{name}_{200 * passes}", repeated(round_takes, probe, passes)

    def copies(self) -> Iterator[Named]:
        """Yields the latency of bulk copies, and the bytes for each cycle and SM with SLOTS of them in flight."""

        def latency(size: int, step: int) -> float:
            if step:
                self.data[FLUSHED:].zero_()
            found = self.one("COPY", 32, size=size, step=step)[0][2:32]
            return FAILED if NONE in found else median(found)

        def rate(blocks: int, copies: int, region: int, step: int) -> float:
            took = [span(warps[:1]) for warps in self.blocks("COPIES", copies, blocks=blocks, size=region, step=step)]
            return FAILED if FAILED in took else fmean(copies * SLOT / cycles for cycles in took)

        for size in (4096, 16384, 22528):
            yield f"bulk_latency_l2_{size}", repeated(latency, size, 0)
            yield f"bulk_latency_dram_{size}", repeated(latency, size, 65536)
        yield "bulk_interval_l2", repeated(rate, 1, 512, COMMON, 0)
        yield "bulk_interval_l2_all", repeated(rate, self.sms, 512, COMMON, 4 * SLOT)
        yield "bulk_interval_dram_all", repeated(rate, self.sms, 448, BUFFER, 448 * SLOT)


def interval_during(warps: Marks) -> float:
    """Returns the cycles for each product of warpgroup 1 while warpgroup 0 measured, FAILED where it ended too soon."""
    start, end = warps[0][0], warps[0][1]
    chunks = [since(start, mark) for mark in warps[4][:CHUNKS]]
    during = [chunk for chunk in chunks if 0 <= chunk <= since(start, end)]
    if len(during) < 3 or chunks[-1] < since(start, end):
        return FAILED
    return (during[-1] - during[0]) / (len(during) - 1) / CHUNK


def measure() -> dict[str, float | list[float]]:
    """Runs all probes on this process's GPU, some seconds besides the compilation; FAILED says that one gave up."""
    probes = Probes()
    parts = (probes.products(), probes.queues(), probes.vector(), probes.barriers(), probes.copies())
    return {name: value for part in parts for name, value in part}


@click.command()
def main() -> None:
    """Print what one SM of the GPU here does, as JSON."""
    if not visible_gpus():
        raise InputError(f"probes: no GPU here, expected one of {HOPPER}")
    click.echo(json.dumps(measure(), indent=1))
