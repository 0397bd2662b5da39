"""With invariant=True a row has the same bits whatever is beside it, on a Hopper GPU.

A prompt is computed whole, then again in calls that are drawn: some of its rows or all, alone, in a batch, or packed
between neighbours of any lengths, by kernels for all SMs or for 100. On the CPU stand-ins show that the calls are
right.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from code_mutants.kernels import generated
from on_cpu import Kernels, forget_plans, on_cpu
from packed_check import offsets_of
from tiers import exhaustive
from torch import Tensor

from tl_attention import attention, attention_varlen
from tl_attention.compiler.compile import compile_kernel
from tl_attention.compiler.toolchain import use_nvcc
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.machine_code.nvcc import call_nvcc
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.op import compiled
from tl_attention.problem.mask import CAUSAL, FULL, Mask, kind_of, masked
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve

__all__ = ["on_cpu"]
# Of each case, so many in each of some tests: side by side they compile its kernels.
BATCHES, SHARDS = 50, 4
CHUNKS = (1, 16, 64)
FEWER_SMS = 100


@dataclass(frozen=True)
class Case:
    """A case is the kind of calls whose rows are watched, and how long their prompts are."""

    head_dims: tuple[int, int]
    heads: tuple[int, int]
    dtype: str
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    lengths: tuple[int, ...] = (1, 70, 300, 700)

    def __str__(self) -> str:
        size = "_".join(map(str, dict.fromkeys(self.head_dims)))
        mask = kind_of(masked(self.causal, self.window))
        return f"{size}-{'on'.join(map(str, self.heads))}-{self.dtype}-{mask}{'-softcap' * bool(self.softcap)}"


# Other warps' scores choose how a softcap is computed, and the rules ask whether there are more than 4096 keys.
CAPPED = Case((128, 128), (4, 2), "bfloat16", causal=True, softcap=5.0)
# Of so many keys up to 64 rows would have parts.
MANY = Case((128, 128), (16, 2), "bfloat16", causal=True, lengths=(3000, 9000))
LONG = Case((96, 96), (4, 4), "bfloat16", causal=True, lengths=(300, 5000))
CASES = (
    Case((128, 128), (8, 8), "bfloat16"),
    Case((128, 128), (8, 2), "bfloat16", causal=True),
    Case((64, 64), (4, 4), "float16", causal=True, window=(100, -1)),
    Case((128, 128), (4, 1), "bfloat16", window=(300, 40)),
    Case((96, 96), (3, 3), "float16", softcap=20.0),
    CAPPED,
    LONG,
    MANY,
    Case((192, 128), (4, 4), "bfloat16", causal=True),
    # Such windows are left out where they are as long as the sequence alone.
    Case((192, 128), (4, 4), "bfloat16", window=(200, 150)),
    Case((192, 192), (2, 2), "float16"),
)


@dataclass(frozen=True)
class Prompt:
    """A prompt is one sequence: q, k and v (rows, heads, head_dim), and the options of its calls."""

    q: Tensor
    k: Tensor
    v: Tensor
    options: dict[str, Any]

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v

    def like(self, rows: int, keys: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draws another sequence of these lengths."""
        return tuple(torch.randn_like(x[:1].expand(n, *x.shape[1:])) for x, n in zip(self.all, (rows, keys, keys)))  # type: ignore[return-value]

    def chunk(self, draw: random.Random) -> tuple[slice, tuple[Tensor, Tensor, Tensor]]:
        """Draws some of the rows, and returns them with q, k and v of a call that computes these alone.

        Later keys are left out where a causal mask hides them. Queries and keys end together, so under other windows
        the last rows are taken.
        """
        rows = len(self.q)
        count = min(rows, draw.choice((*CHUNKS, rows)))
        mask = masked(self.options["causal"], self.options["window_size"])
        first = rows - count if mask != FULL and mask.right != 0 else draw.randint(0, rows - count)
        keys = first + count if mask.right == 0 else rows
        return slice(first, first + count), (self.q[first : first + count], self.k[:keys], self.v[:keys])


def drawn(case: Case, rows: int, seed: int, device: str, invariant: bool) -> Prompt:
    generator = torch.Generator(device).manual_seed(seed)
    (heads, heads_kv), (head_dim, head_dim_v) = case.heads, case.head_dims
    q, k, v = (
        (torch.randn(rows, h, columns, generator=generator, device=device) + 0.5).to(getattr(torch, case.dtype))
        for h, columns in ((heads, head_dim), (heads_kv, head_dim), (heads_kv, head_dim_v))
    )
    options = {"causal": case.causal, "window_size": case.window, "softcap": case.softcap, "invariant": invariant}
    return Prompt(q, k, v, options)


def dense(prompt: Prompt, given: tuple[Tensor, Tensor, Tensor], draw: random.Random) -> Tensor:
    """Computes a sequence in a batch with others of its lengths; in one layout or the other."""
    others = [prompt.like(len(given[0]), len(given[1])) for _ in range(draw.choice((0, 1, 4)))]
    at = draw.randint(0, len(others))
    batch = [torch.stack(x) for x in zip(*others[:at], given, *others[at:])]
    if draw.random() < 0.5:
        return attention(*batch, layout="bshd", **prompt.options)[at]
    return attention(*(x.transpose(1, 2).contiguous() for x in batch), **prompt.options)[at].transpose(0, 1)


def packed(prompt: Prompt, given: tuple[Tensor, Tensor, Tensor], draw: random.Random) -> Tensor:
    """Computes a sequence between others of any lengths."""
    longest = draw.choice((3, 100, 1500))
    others = [
        prompt.like(draw.randint(0, longest), draw.randint(0, longest)) for _ in range(draw.choice((0, 1, 5, 20)))
    ]
    at = draw.randint(0, len(others))
    every = [*others[:at], given, *others[at:]]
    of_q, of_k = (tuple(len(of_one[side]) for of_one in every) for side in (0, 1))
    first, device = sum(of_q[:at]), str(given[0].device)
    q, k, v = (torch.cat(x) for x in zip(*every))
    offsets = offsets_of(of_q, device), offsets_of(of_k, device)
    found = attention_varlen(q, k, v, *offsets, max(of_q), max(of_k), **prompt.options)
    return found[first : first + len(given[0])]


def pairs(
    case: Case,
    batches: int,
    monkeypatch: pytest.MonkeyPatch,
    device: str = "cuda",
    invariant: bool = True,
    shard: int = 0,
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields for each batch what it was, the rows as the whole prompt alone has them, and as the batch has them."""
    draw = random.Random(f"{case} {shard}")
    sms = compiled.sms_of
    for _ in range(batches):
        prompt = drawn(case, draw.choice(case.lengths), draw.randrange(1 << 30), device, invariant)
        whole = attention(*(x[None] for x in prompt.all), layout="bshd", **prompt.options)[0]
        rows, given = prompt.chunk(draw)
        fewer, way = draw.random() < 0.3, draw.choice((dense, packed))
        with monkeypatch.context() as patched:
            if fewer:
                forget_plans(patched)
                patched.setattr(compiled, "sms_of", lambda device: FEWER_SMS)
            found = way(prompt, given, draw)
        assert compiled.sms_of is sms
        what = f"{way.__name__}, rows {rows.start} to {rows.stop} of {len(whole)}{', 100 SMs' * fewer}"
        yield what, whole[rows], found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_computes_the_rows_of_the_prompt(case: Case, on_cpu: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    for what, wanted, found in pairs(replace(case, lengths=(1, 70, 300)), 8, monkeypatch, "cpu"):
        assert (wanted - found).abs().max() <= 1e-2, what


def test_a_window_as_long_as_the_keys_is_left_out_where_rows_stay_as_they_are(on_cpu: Kernels) -> None:
    for head_dim, kept in ((64, ()), (128, ("window_right",))):
        q = torch.randn(1, 2, 30, head_dim, dtype=torch.float16)
        for invariant, names in ((False, ()), (None, kept), (True, kept)):
            on_cpu.asked.clear()
            wide, wider = (attention(q, q, q, window_size=(n, 2 * n), invariant=invariant) for n in (40, 2**40))
            ((_, variant),) = on_cpu.asked
            assert variant.mask.names == names and torch.equal(wide, wider)
            assert torch.equal(wide, attention(q, q, q))


WINDOW = Mask(1, 1).runtime
# Of head sizes, schedules of equal arithmetic: each with a mask, and whether it is for packed sequences.
ALIKE = {
    "64": (64, 64, ("d64", FULL), ("d64_causal", CAUSAL), ("best_causal", CAUSAL), ("best_causal", WINDOW, True)),
    "128": (128, 128, ("best", FULL), ("ragged", FULL, True)),
    "128 causal": (
        128,
        128,
        ("best_causal", CAUSAL),
        ("best_causal", Mask(None, 1).runtime),
        ("best_causal", WINDOW, True),
    ),
    "192": (192, 192, ("d192", FULL), ("d192_ragged", FULL, True)),
    "192/128": (192, 128, ("d192_128", FULL), ("d192_128_ragged", FULL, True), ("d192_128_causal", WINDOW)),
    "256": (256, 256, ("d256", FULL), ("d256_causal", CAUSAL, True), ("d256_causal", WINDOW)),
}


@exhaustive
@pytest.mark.parametrize("name", ALIKE)
def test_loops_of_equal_arithmetic_have_the_same_floating_point_instructions(name: str) -> None:
    """The compiler fuses products and sums alike in each loop, over masked blocks and others, of each kernel."""
    head_dim, head_dim_v, *kernels = ALIKE[name]
    found = set()
    for of, mask, *packed in kernels:
        variant = Variant(head_dim, "bfloat16", mask, head_dim_v, packed=bool(packed))
        for loop in MachineCode(compile_kernel(resolve(of).schedule, variant)).report.loops:
            found.add(tuple(loop.counts.get(kind, 0) for kind in ("HGMMA", "FFMA", "FADD", "MUFU", "FMNMX")))
    assert len(found) == 1


@exhaustive
@pytest.mark.parametrize("name", ALIKE)
def test_the_compiler_fuses_no_product_and_sum_of_its_own(name: str, tmp_path: Path) -> None:
    """The compiler fuses by the code around: in one packed kernel it once left one product of 64 apart."""
    head_dim, head_dim_v, *_, (of, mask, *packed) = ALIKE[name]
    schedule = resolve(of).schedule
    variant = Variant(head_dim, "float16", mask, head_dim_v, packed=bool(packed), strided=bool(packed))
    source, _ = generated(lowering_of(schedule).prim_func(Planned(schedule), variant), schedule, variant)
    as_it_is, unfused = (arithmetic_of(source, tmp_path, *more) for more in ((), ("-fmad=false",)))
    assert as_it_is == unfused and as_it_is["fma"] > as_it_is["ex2"] > 0


def arithmetic_of(source: str, folder: Path, *more: str) -> Counter[str]:
    """Counts the float instructions of the PTX that nvcc makes of device code."""
    ptx = folder / "kernel.ptx"
    with use_nvcc() as nvcc:
        call_nvcc(nvcc, source, "sm_90a", more=("-ptx", *more), output=ptx).check_returncode()
    return Counter(
        re.findall(r"^\s+(?:@!?%p\d+ )?(fma|mul|add|sub|neg|ex2)[.\w]*\.f32\s", ptx.read_text(), re.MULTILINE)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_has_the_same_bits(case: Case, shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        what
        for what, *rows in pairs(case, BATCHES, monkeypatch, shard=shard)
        if not torch.equal(*(x.view(torch.int16) for x in rows))
    ]
    assert not found, f"{len(found)} of {BATCHES}: {found[:5]}"


@pytest.mark.gpu
@pytest.mark.parametrize("case", [CAPPED, LONG, MANY], ids=str)
def test_without_it_rows_may_differ(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    same = [torch.equal(*rows) for _, *rows in pairs(case, BATCHES, monkeypatch, invariant=False)]
    assert any(same) and not all(same)
