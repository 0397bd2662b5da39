"""Computes gradients of attention in fp64, and stands in for FlashAttention-2's and cuDNN's backward on the CPU."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tl_attention.op import aten, backward, pair, trial
from tl_attention.schedule.files.backward import BackwardRules, cudnn_versions, read

OPEN = -1
# These take the pair wherever they may.
WITH_A_PAIR = """\
rules:
  - {deterministic: false, packed: false, operator: pair, schedules: [dq, dkdv], why: it is fast, record: none yet}
  - archs: [sm_80, sm_86, sm_89, sm_90a, sm_120]
    operator: flash2
    why: it serves all
    record: none yet
"""


def rules_with_a_pair(folder: Path) -> BackwardRules:
    """Returns rules that take a pair, and then FlashAttention-2, from a file that is written into the folder."""
    (folder / "backward.yaml").write_text(WITH_A_PAIR)
    return read(folder / "backward.yaml")


def visible(seq_q: int, seq_kv: int, left: int = OPEN, right: int = OPEN) -> Tensor:
    """Says which keys a query sees, (seq_q, seq_kv), as attention() does: queries and keys end together."""
    own = torch.arange(seq_q)[:, None] + seq_kv - seq_q
    key = torch.arange(seq_kv)
    return ((left == OPEN) | (key >= own - left)) & ((right == OPEN) | (key <= own + right))


def visible_to_flash(seq_q: int, seq_kv: int, left: int, right: int) -> Tensor:
    """Says which keys a query sees, as FlashAttention-2 does: a side that alone is open becomes seq_kv."""
    left, right = (OPEN if side >= seq_kv else side for side in (left, right))
    if (left == OPEN) != (right == OPEN):
        left, right = (seq_kv if side == OPEN else side for side in (left, right))
    return visible(seq_q, seq_kv, left, right)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, seen: Tensor, scale: float, softcap: float
) -> tuple[Tensor, Tensor]:
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = scale * q @ k.transpose(2, 3)
    scores = (softcap * (scores / softcap).tanh() if softcap else scores).masked_fill(~seen, float("-inf"))
    # Without sinks the last column is -inf, and a row without keys has no weight at all.
    scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:3], 1)], dim=3)
    none = scores.isneginf().all(dim=3, keepdim=True)
    weights = scores.masked_fill(none, 0).softmax(dim=3).masked_fill(none, 0)
    # Where the LSE is -inf it has no gradient.
    return weights[..., :-1] @ v, scores.masked_fill(none, 0).logsumexp(dim=3).masked_fill(none[..., 0], 0)


def exact(
    q: Tensor, k: Tensor, v: Tensor, grad: Tensor, seen: Tensor, scale: float, sinks: Tensor | None = None,
    d_lse: Tensor | None = None, softcap: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Returns the gradients of q, k, v (batch, heads, seq, head_dim), and of sinks if there are some, in fp64.

    `d_lse` is that of the LSE, (batch, heads, seq_q), if it has one.
    """
    given = q.new_full((q.shape[1],), float("-inf")) if sinks is None else sinks
    inputs = [x.detach().double().requires_grad_() for x in (q, k, v, given)]
    asked = inputs if sinks is not None else inputs[:3]
    results = _attention(*inputs, seen.to(q.device), scale, softcap)
    grads = [x.double() for x in (grad, d_lse) if x is not None]
    return torch.autograd.grad(results[: len(grads)], asked, grads)


def _from_lse(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, output: Tensor, lse: Tensor, seen: Tensor, scale: float
) -> tuple[Tensor, ...]:
    """Computes gradients from output and LSE as the operators do: (batch, heads, seq, head_dim), and no head_dim."""
    dO, Q, K, V, output = (x.double() for x in (grad, q, k, v, output))
    K, V = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (K, V))
    P = (scale * Q @ K.transpose(2, 3) - lse[..., None]).exp().masked_fill(~seen, 0)
    dS = P * (dO @ V.transpose(2, 3) - (dO * output).sum(dim=3, keepdim=True))
    found = scale * dS @ K, scale * dS.transpose(2, 3) @ Q, P.transpose(2, 3) @ dO
    gradients = tuple(torch.empty_like(x) for x in (q, k, v))
    for gradient, value in zip(gradients, found, strict=True):
        gradient.copy_(value.unflatten(1, (gradient.shape[1], -1)).sum(dim=2))
    return gradients


def _flash(
    grad, q, k, v, output, lse, cum_q, cum_k, max_q, max_k, dropout, causal, rng_state, unused, *, scale=None, finite=True,
    **window,
):  # fmt: skip
    """Computes gradients from output and LSE as FlashAttention does, in fp64 and for (batch, seq, heads, head_dim)."""
    if cum_q is not None:
        # Packed sequences are (rows, heads, head_dim). Rows that are no sequence's get no gradient.
        gradients = tuple(torch.full_like(x, torch.nan) for x in (q, k, v))
        for n in range(len(cum_q) - 1):
            of_q, of_k = (slice(*cum[n : n + 2].tolist()) for cum in (cum_q, cum_k))
            parts = [x[of][None] for x, of in ((grad, of_q), (q, of_q), (k, of_k), (v, of_k), (output, of_q))]
            rows, keys = parts[1].shape[1], parts[2].shape[1]
            assert rows <= max_q and keys <= max_k and not lse[:, of_q].isneginf().any()
            found = _flash(
                *parts, lse[None, :, of_q].contiguous(), None, None, rows, keys, dropout, causal, rng_state, unused,
                scale=scale, **window, finite=False,
            )  # fmt: skip
            for whole, of, part in zip(gradients, (of_q, of_k, of_k), found, strict=True):
                whole[of] = part[0]
        return gradients
    assert (cum_q, cum_k, max_q, max_k, dropout) == (None, None, q.shape[1], k.shape[1], 0.0)
    # varlen_attn passes one that has no element.
    assert (rng_state.shape, rng_state.dtype, unused.dim() < 2) == ((2,), torch.uint64, True)
    batch, seq_q, heads, head_dim = q.shape
    assert lse.shape == (batch, heads, seq_q) and lse.is_contiguous() and (lse.isfinite().all() or not finite)
    left, right = window["window_size_left"], window["window_size_right"]
    assert causal == ((left, right) == (OPEN, 0))
    scale = head_dim**-0.5 if scale is None else scale
    assert v.shape[3] == head_dim
    seen = visible_to_flash(seq_q, k.shape[1], left, right)
    bhsd = (x.transpose(1, 2) for x in (grad, q, k, v, output))
    return tuple(x.transpose(1, 2) for x in _from_lse(*bhsd, lse, seen, scale))


class Operators:
    """These operators compute gradients on the CPU; `taken` are the names of those that were called, in order.

    `fault` spoils what cuDNN's gives, or raises.
    """

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.plans: dict[object, object] = {}
        self.fault: Callable[[tuple[Tensor, ...]], None] = lambda gradients: None

    def flash2(self, *given, **options) -> tuple[Tensor, ...]:
        self.taken.append("flash2")
        return _flash(*given, **options)

    def cudnn(
        self, grad, q, k, v, output, lse, seed, offset, bias, cum_q, cum_k, max_q, max_k, dropout, causal, *, scale=None
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Computes gradients of (batch, heads, seq, head_dim) under a causal mask that is aligned at the top left.

        As in PyTorch a plan is found by q, k, v and the lengths alone, and has the strides of output and gradient built
        in. Here other ones are an error, where cuDNN would read the wrong elements.
        """
        self.taken.append("cudnn")
        assert (bias, cum_q, cum_k, dropout) == (None, None, None, 0.0)
        assert lse.shape == (*q.shape[:3], 1) and lse.is_contiguous() and lse.dtype == torch.float32
        assert all(x.stride(-1) == 1 and not x.data_ptr() % 16 for x in (grad, q, k, v, output))
        assert all(stride and not stride % 8 for stride in grad.stride()[:-1])
        key = (*((x.shape, x.stride()) for x in (q, k, v)), max_q, max_k, causal)
        places = output.stride(), grad.stride()
        assert self.plans.setdefault(key, places) == places, "the plan is of other strides"
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        seen = seen.tril() if causal else seen
        found = _from_lse(grad, q, k, v, output, lse[..., 0], seen, q.shape[3] ** -0.5 if scale is None else scale)
        self.fault(found)
        return found


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operators]:
    """Makes both of PyTorch's backwards take CPU tensors, through their own schemas, with a cuDNN that is known."""
    found = Operators()
    monkeypatch.setattr(trial, "cudnn_version", lambda: cudnn_versions()[0])
    monkeypatch.setattr(trial, "_outcomes", {})
    monkeypatch.setattr(backward, "_shapes", {})
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(aten.NAMES["flash2"], found.flash2, "CPU")
        library.impl(aten.NAMES["cudnn"], found.cudnn, "CPU")
        yield found


@pytest.fixture
def no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has no pair of the rules serve, as where no compiler is; a test asks for it behind `on_cpu`."""
    monkeypatch.setattr(pair, "why_none_is_made", lambda: "nvcc: none that can compile")
    monkeypatch.setattr(pair, "is_finished", lambda schedule, variant: False)


@pytest.fixture
def flash_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes PyTorch's FlashAttention backward take CPU tensors, through its own schema; no shape was there before."""
    monkeypatch.setattr(backward, "_shapes", {})
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("_flash_attention_backward", _flash, "CPU")
        yield
