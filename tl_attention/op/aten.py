"""This module holds PyTorch's private operators of attention's backward: FlashAttention-2's, and cuDNN's.

Neither is promised to stay. Each is called only where its schema is the one that this module was written for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from tl_attention.errors import InputError
from tl_attention.op.in_memory import ALIGNMENT
from tl_attention.problem.mask import CAUSAL, Mask, sides
from tl_attention.schedule.files.backward import CUDNN, FLASH2

NAMES = {FLASH2: "_flash_attention_backward", CUDNN: "_scaled_dot_product_cudnn_attention_backward"}
_INPUTS = "grad_out query key value out logsumexp"
# The arguments of each by name; `*` is the state of dropout's generator, whose names have changed.
EXPECTED = {
    FLASH2: f"{_INPUTS} cum_seq_q cum_seq_k max_q max_k dropout_p is_causal * * scale window_size_left window_size_right",
    CUDNN: f"{_INPUTS} * * attn_bias cum_seq_q cum_seq_k max_q max_k dropout_p is_causal scale",
}


@functools.cache
def lacking(operator: str) -> str:
    """Returns why this torch has no such operator, or another one; "" if it has the one that is called here."""
    name = NAMES[operator]
    if not hasattr(torch.ops.aten, name):
        return f"torch {torch.__version__} has no aten.{name}"
    names = [argument.name for argument in getattr(torch.ops.aten, name).default._schema.arguments]
    wanted = EXPECTED[operator].split()
    if len(names) != len(wanted) or any(there not in ("*", own) for own, there in zip(names, wanted)):
        return f"torch {torch.__version__} has aten.{name} with other arguments"
    return ""


class Saved(NamedTuple):
    """A Saved holds what a backward pass reads: the output's gradient, and the forward's inputs and results."""

    grad: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    lse: Tensor

    def but(self, change: Callable[[Tensor], Tensor]) -> Saved:
        """Returns a copy in which `change` has been applied to each tensor except the LSE."""
        return Saved._make([*map(change, self[:5]), self.lse])


def flash2(
    given: Saved,
    mask: Mask,
    scale: float | None,
    offsets: tuple[Tensor, Tensor] | None = None,
    longest: tuple[int, int] | None = None,
) -> tuple[Tensor, ...]:
    """Returns the gradients of q, k and v by FlashAttention-2, whose masks are aligned bottom right as ours are.

    Tensors are (batch, seq, heads, head_dim) with any strides, and the LSE (batch, heads, seq_q), contiguous. Of packed
    sequences, with `offsets` of q and of k, they are (rows, heads, head_dim), and the LSE (heads, rows). The heads of V
    may have another size than those of Q and K: zeros then fill the smaller ones up, as it takes one size alone.
    Raises InputError if this torch has another operator.
    """
    if why := lacking(FLASH2):
        raise InputError(f"attention: {why}, expected that of torch 2.8 to 2.13 for a gradient")
    _, q, k, v, _, _ = given
    if q.shape[-1] != v.shape[-1]:
        size, scale = max(q.shape[-1], v.shape[-1]), q.shape[-1] ** -0.5 if scale is None else scale
        filled = flash2(given.but(lambda x: pad(x, (0, size - x.shape[-1]))), mask, scale, offsets, longest)
        return tuple(torch.empty_like(x).copy_(whole[..., : x.shape[-1]]) for x, whole in zip((q, k, v), filled))
    # Without dropout nobody reads the state of its generator: made as PyTorch's own forward does. It is made anew,
    # because what is made while a graph is captured must not outlive the capture.
    state = q.new_empty((2,), dtype=torch.uint64), q.new_empty((), dtype=torch.uint64)
    left, right = sides(mask)
    most = longest or (q.shape[1], k.shape[1])
    gradients: tuple[Tensor, ...] = torch.ops.aten._flash_attention_backward(
        *(*given, *(offsets or (None, None)), *most, 0.0, mask == CAUSAL, *state),
        scale=scale, window_size_left=left, window_size_right=right,
    )  # fmt: skip
    return gradients


def cudnn(given: Saved, causal: bool, scale: float | None) -> tuple[Tensor, ...]:
    """Returns the gradients of q, k and v by cuDNN. Tensors are (batch, heads, seq, head_dim) with any strides.

    The LSE is (batch, heads, seq_q), contiguous. A causal mask is aligned at the top left, so it is ours only where
    there are as many queries as keys.
    """
    grad, q, k, v, output, lse = given
    *outer, last = grad.stride()
    unit = ALIGNMENT // grad.element_size()
    # There cuDNN cannot read the gradient.
    if last != 1 or any(stride % unit or not stride for stride in outer) or grad.data_ptr() % ALIGNMENT:
        grad = torch.empty_like(output).copy_(grad)
    # PyTorch keeps cuDNN's plans by the places of q, k and v alone, though a plan also has those of the output and of
    # its gradient built in. The key also has a number of queries, which PyTorch uses for nothing else: so calls whose
    # plans differ must differ in it, from PyTorch's own calls, too, whose output lies elsewhere.
    plan = hash((output.stride(), grad.stride()))
    # Of the state of dropout's generator nothing is read.
    state: Any = (lse, lse, None, None, None)
    gradients: tuple[Tensor, ...] = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad, q, k, v, output, lse.unsqueeze(3), *state, plan, k.shape[2], 0.0, causal, scale=scale
    )
    return gradients
