"""FlashAttention-3's matrix of backward tests, for a pair (dq, dkdv): none of its gradients is outside that tolerance.

Its test takes both dtypes, heads that share K and V or not, a softcap of 0 and 15, a causal mask, windows, and the
twenty pairs of lengths below; here a covering design of these, at the head sizes that a pair serves. An error may be
twice that of eager attention in the same dtype, and what a number near 0.3 is rounded by. Packed sequences lie between
rows that are none's.

    PYTHONPATH=tests:tests/library python tests/library/test_gradient_matrix.py

compiles all kernels, with a process for each core. Where they are not there, each test compiles its own.
"""

import math
import multiprocessing
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import gpu_lost
import pytest
import torch
from covering import covering
from gradients import OPEN, exact, visible
from on_cpu import Kernels, launched, on_cpu, take_for_a_gpu
from test_drawn_gradients import compile_into_store
from test_packed_pair import begins, wanted
from torch import Tensor

from tl_attention import attention, attention_varlen

__all__ = ["on_cpu"]

PAIR = ("dq", "dkdv")
LENGTHS = (
    *((1, 1), (64, 128), (128, 192), (256, 256), (239, 1), (799, 3), (113, 203), (113, 128), (128, 217), (113, 211)),
    *((108, 256), (256, 512), (384, 256), (640, 128), (512, 256), (1024, 1024), (1023, 1024), (1024, 1023)),
    *((4096, 4096), (4224, 4224)),
)
# What cancels to nothing, as the scores' gradients of a row with one key do, leaves fp32's roundings of its terms.
CANCELLED = 1e-5
AXES: dict[str, tuple[Any, ...]] = {
    "dtype": (torch.bfloat16, torch.float16),
    "size": (64, 96, 128, 72),
    "heads": ((6, 6), (6, 1), (6, 2)),
    "softcap": (0.0, 15.0),
    "mask": ("full", "causal", "local"),
    "layout": ("bhsd", "bshd"),
}


class Kind(NamedTuple):
    """A Kind is what calls have in common whose kernels are the same."""

    dtype: torch.dtype
    size: int
    heads: tuple[int, int]
    softcap: float
    mask: str
    layout: str

    def window(self, seq_q: int, seq_kv: int) -> tuple[int, int]:
        """Returns the window_size of a case, whose sides are drawn where it is local."""
        rng = random.Random(f"{seq_q} {seq_kv}")
        local = (rng.randrange(seq_kv), rng.randrange(seq_kv))
        return {"full": (OPEN, OPEN), "causal": (OPEN, 0), "local": local}[self.mask]

    def tensors(self, seq_q: int, seq_kv: int, device: str) -> list[Tensor]:
        """Draws q, k, v and the output's gradient, (batch, heads, seq, head_dim), that lie in the kind's layout."""
        generator = torch.Generator(device).manual_seed(seq_q * 5000 + seq_kv)
        batch, (heads, heads_kv) = 9 if seq_kv <= 2048 else 2, self.heads
        sides = (heads, seq_q), (heads_kv, seq_kv), (heads_kv, seq_kv), (heads, seq_q)
        drawn = [torch.randn(batch, *of, self.size, generator=generator, device=device) for of in sides]
        # So that a cap changes some scores.
        drawn[0] *= self.softcap / 4 or 1.0
        drawn = [x.to(self.dtype) for x in drawn]
        return drawn if self.layout == "bhsd" else [x.transpose(1, 2).contiguous().transpose(1, 2) for x in drawn]

    def __str__(self) -> str:
        words = (str(self.dtype).removeprefix("torch."), f"d{self.size}", "{}:{}".format(*self.heads), self.mask)
        return "_".join([*words, self.layout, *(["capped"] if self.softcap else [])])


@cache
def kinds() -> tuple[Kind, ...]:
    """Returns kinds of which each two values of two axes have one."""
    rows = covering(AXES, lambda row: True, set(), random.Random(3))
    return tuple(Kind(**row) for row in rows)


def in_layout(kind: Kind, x: Tensor) -> Tensor:
    return x if kind.layout == "bhsd" else x.transpose(1, 2)


def ours(kind: Kind, window: tuple[int, int], inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Returns the gradients by the pair, (batch, heads, seq, head_dim)."""
    leaves = [in_layout(kind, x).detach().requires_grad_() for x in inputs]
    options = {"window_size": window, "softcap": kind.softcap, "layout": kind.layout, "backward": PAIR}
    found = torch.autograd.grad(attention(*leaves, **options), leaves, in_layout(kind, grad))
    return [in_layout(kind, x) for x in found]


def eager(kind: Kind, seen: Tensor, inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor]:
    """Returns the gradients by autograd of attention whose every number is rounded to the dtype."""
    q, k, v = leaves = [x.detach().requires_grad_() for x in inputs]
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = q @ (keys * kind.size**-0.5).mT
    scores = kind.softcap * (scores / kind.softcap).tanh() if kind.softcap else scores
    none = ~seen.any(dim=1)[:, None]
    weights = scores.masked_fill(~seen, -math.inf).masked_fill(none, 0).softmax(dim=3).masked_fill(none, 0)
    return list(torch.autograd.grad(weights @ values, leaves, grad))


def faults(kind: Kind, found: Sequence[Tensor], peer: Sequence[Tensor], precise: Sequence[Tensor]) -> Iterator[str]:
    """Yields the gradients that are outside the tolerance, with their errors."""
    for name, x, other, value in zip(("dq", "dk", "dv"), found, peer, precise, strict=True):
        rounded = value.to(kind.dtype)
        least = 2 * (rounded + 0.3 - 0.3 - rounded).abs().max().item() + (3e-4 if kind.softcap else CANCELLED)
        error, of_peer = ((one - value).abs().max().item() for one in (x, other))
        if not error <= 2 * of_peer + least:
            yield f"{name}: {error:.3g}, expected at most 2 x {of_peer:.3g} + {least:.3g}"


def case_faults(kind: Kind, seq_q: int, seq_kv: int, device: str) -> list[str]:
    window = kind.window(seq_q, seq_kv)
    *inputs, grad = kind.tensors(seq_q, seq_kv, device)
    found = ours(kind, window, inputs, grad)
    if device == "cuda":
        gpu_lost.wait()
    seen = visible(seq_q, seq_kv, *window).to(device)
    precise = exact(*inputs, grad, seen, kind.size**-0.5, softcap=kind.softcap)
    return [*faults(kind, found, eager(kind, seen, inputs, grad), precise)]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", kinds(), ids=str)
def test_no_gradient_is_outside_flash_attention_3s_tolerance(kind) -> None:
    wrong = {lengths: said for lengths in LENGTHS if (said := case_faults(kind, *lengths, "cuda"))}
    assert not wrong, wrong


def test_the_list_covers_each_two_values_of_two_axes_with_few_kinds() -> None:
    assert len(LENGTHS) == len(set(LENGTHS)) == 20 and len(kinds()) <= 24


# Short ones, of which some have rows without a key, for stand-ins on the CPU.
FEW = ((1, 1), (64, 128), (239, 1), (113, 20))


@pytest.mark.parametrize("kind", kinds(), ids=str)
def test_the_stand_ins_are_within_it(kind, on_cpu: Kernels) -> None:
    for lengths in FEW[kinds().index(kind) % 2 :: 2]:
        assert not case_faults(kind, *lengths, "cpu"), lengths


@pytest.mark.parametrize("number", range(3))
def test_a_gradient_that_is_off_is_found(number, on_cpu: Kernels) -> None:
    kind = kinds()[0]
    *inputs, grad = kind.tensors(40, 50, "cpu")
    seen = visible(40, 50, *kind.window(40, 50))
    precise, peer = exact(*inputs, grad, seen, kind.size**-0.5, softcap=kind.softcap), eager(kind, seen, inputs, grad)
    found = [x.clone() for x in precise]
    assert not [*faults(kind, found, peer, precise)]
    found[number][1, 0, 7, 3] += 0.5
    (said,) = faults(kind, found, peer, precise)
    assert said.startswith(("dq", "dk", "dv")[number])
    found[number][1, 0, 7, 3] = math.nan
    assert [*faults(kind, found, peer, precise)]


# --- packed sequences ------------------------------------------------------------------------------------------------


PACKED, UNUSED = LENGTHS[:-2], 9


def packed_faults(kind: Kind, lengths: Sequence[tuple[int, int]], device: str, unused: int = UNUSED) -> list[str]:
    """Returns what is wrong of one call with all sequences, whose first and last rows are no sequence's."""
    window = kind.window(113, 203)
    alone = [kind.tensors(*of, device) for of in lengths]
    rows = [torch.full((unused, heads, kind.size), math.nan, dtype=kind.dtype, device=device) for heads in kind.heads]
    others = (rows[0], rows[1], rows[1], rows[0])
    whole = [torch.cat([a, *(x[n][0].transpose(0, 1) for x in alone), a]) for n, a in enumerate(others)]
    *inputs, grad = whole
    cu = [of.to(device) for of in begins(lengths, (unused, unused))]
    leaves = [x.requires_grad_() for x in inputs]
    longest = (max(of) for of in zip(*lengths))
    output = attention_varlen(*leaves, *cu, *longest, window_size=window, softcap=kind.softcap, backward=PAIR)
    found = torch.autograd.grad(output, leaves, grad)
    if device == "cuda":
        gpu_lost.wait()
    precise, peer = wanted(inputs, grad, cu, window, kind.softcap), [torch.zeros_like(x) for x in inputs]
    at = [torch.tensor([unused, *of]).cumsum(0).tolist() for of in zip(*lengths)]
    for n, of_one in enumerate(alone):
        seen = visible(*lengths[n], *window).to(device)
        one = [x[:1] for x in of_one]
        for to, side, x in zip(peer, (0, 1, 1), eager(kind, seen, one[:3], one[3])):
            to[at[side][n] : at[side][n + 1]] = x[0].transpose(0, 1)
    return [*faults(kind, found, peer, precise)]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", kinds(), ids=str)
def test_no_gradient_of_packed_sequences_is_outside_it(kind) -> None:
    lengths = random.Random(str(kind)).sample(PACKED, len(PACKED))
    assert not packed_faults(kind, lengths, "cuda")


def test_stand_ins_for_packed_sequences_are_within_it(on_cpu: Kernels) -> None:
    for kind in kinds()[:4]:
        assert not packed_faults(kind, [(1, 1), (64, 28), (39, 1)], "cpu"), kind


# --- what is compiled ------------------------------------------------------------------------------------------------


def kernels() -> list[tuple[Any, Any]]:
    """Returns the kernels that all tests on a GPU take."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        asked: set[tuple[Any, Any]] = set()

        def kernel_of(schedule: Any, variant: Any) -> Any:
            asked.add((schedule, variant))
            return launched(schedule, variant, lambda **tensors: None)

        take_for_a_gpu(monkeypatch, kernel_of)
        monkeypatch.setattr(torch, "randn", lambda *sizes, generator, device: torch.empty(*sizes, device=device))
        for kind in kinds():
            for seq_q, seq_kv in LENGTHS:
                *inputs, grad = kind.tensors(seq_q, seq_kv, "cpu")
                ours(kind, kind.window(seq_q, seq_kv), inputs, grad)
            rows, keys = (sum(of) + 2 * UNUSED for of in zip(*PACKED))
            sides = (rows, kind.heads[0]), (keys, kind.heads[1]), (keys, kind.heads[1])
            leaves = [torch.empty(*of, kind.size, dtype=kind.dtype, requires_grad=True) for of in sides]
            options = {"window_size": kind.window(113, 203), "softcap": kind.softcap, "backward": PAIR}
            output = attention_varlen(*leaves, *begins(PACKED, (UNUSED, UNUSED)), 1024, 1024, **options)
            torch.autograd.grad(output, leaves, output.detach())
    return [*asked]


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool() as pool:
        print(len(pool.starmap(compile_into_store, kernels(), chunksize=1)), "kernels")
