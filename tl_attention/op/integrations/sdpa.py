"""This module runs SDPA on the kernels, as a provider for torch.nn.attention's registry of flash implementations.

While it is active, `attention` replaces the forward pass of aten's flash attention on CUDA, and the gradients of SDPA
are those of `attention`, which start from the output and the LSE that the forward pass returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.backends import cuda as backends
from torch.library import Library
from torch.nn.attention import SDPBackend, register_flash_attention_impl
from torch.nn.functional import scaled_dot_product_attention

from tl_attention.errors import InputError, shown
from tl_attention.op.aten import Saved
from tl_attention.op.attend import attend
from tl_attention.op.backward import dense
from tl_attention.op.batch import BATCHES
from tl_attention.op.call import NO_WINDOW, OFF, Call
from tl_attention.op.gradients import forward_only, lacks_gradient
from tl_attention.op.integrations import NAME
from tl_attention.op.packed import Packed
from tl_attention.op.pages import as_rows, pages_of
from tl_attention.problem.mask import OPEN, masked


def register_sdpa() -> str:
    """Registers the kernels with torch.nn.attention under the name "tl_attention", and returns that name.

    Registering changes no call yet. `torch.nn.attention.activate_flash_attention_impl(name)` makes
    F.scaled_dot_product_attention run on the kernels for fp16 and bf16 tensors (batch, heads, seq, head_dim) on a GPU,
    training included. It also puts flash before cuDNN, which PyTorch would prefer, or switches cuDNN off in SDPA if
    no tensor is on a GPU yet. `torch.nn.attention.restore_flash_attention_impl()` undoes all of this.

    `torch.nn.attention.varlen.varlen_attn`, and SDPA of jagged nested tensors, then run on the kernels, too.

    PyTorch still chooses the backend of each call. Where it does not choose flash, for example because the mask is a
    tensor, its other backends run as before.

    Returns: "tl_attention".
    Raises: nothing itself. A call of SDPA on these kernels raises InputError (a ValueError) for dropout, for a causal
        mask with seq_q != seq_kv, and for whatever `attention` does not support. One of packed sequences raises it for
        whatever `attention_varlen` does not support.
    """
    register_flash_attention_impl(NAME, register_fn=Active)
    return NAME


class Active:
    """Active runs PyTorch's flash attention on the kernels, which SDPA takes first where it may, until `remove`."""

    def __init__(self) -> None:
        self._library: Library | None = register_kernels("CUDA")
        self._enabled = backends.flash_sdp_enabled(), backends.cudnn_sdp_enabled()
        # SDPA's backends in the order in which it asks whether they take a call. To ask for the order before CUDA is
        # initialised would take memory on a GPU that the process may not use.
        self._order: list[int] | None = None
        if torch.cuda.is_initialized():
            _make_first_call()
            self._order = torch._C._get_sdp_priority_order()
            flash = SDPBackend.FLASH_ATTENTION.value
            torch._C._set_sdp_priority_order([flash, *(backend for backend in self._order if backend != flash)])
        # Without an order cuDNN is off, because PyTorch will prefer it.
        _enable(flash=True, cudnn=self._enabled[1] and self._order is not None)

    def remove(self) -> None:
        """Restores PyTorch's own flash attention, and the settings from before the activation."""
        _enable(*self._enabled)
        if self._order is not None:
            torch._C._set_sdp_priority_order(self._order)
        # A library takes its registrations along.
        self._library = None


def _make_first_call() -> None:
    """Makes a call of SDPA that computes nothing: the first one on a GPU sets the order, whatever it was before."""
    nothing = torch.empty(0, 1, 1, 8, device="cuda")
    scaled_dot_product_attention(nothing, nothing, nothing)


def _enable(flash: bool, cudnn: bool) -> None:
    backends.enable_flash_sdp(flash)
    backends.enable_cudnn_sdp(cudnn)


def register_kernels(dispatch_key: str) -> Library:
    """Registers the kernels for aten's flash attention under a key of torch's dispatcher, and returns the library.

    They stay registered for as long as the library lives. A function that this torch does not have is left out.
    """
    library = Library("aten", "IMPL", dispatch_key)
    for name, function in REPLACED.items():
        if hasattr(torch.ops.aten, name):
            library.impl(name, function)
    return library


def sdpa_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Computes attention on the kernels, with arguments and results of aten's `_scaled_dot_product_flash_attention`.

    Tensors are (batch, heads, seq, head_dim). Returns the output, the LSE, two values that only packed sequences have,
    both lengths, and what dropout would have drawn.
    """
    output = torch.empty_like(query)
    _refuse({"dropout_p": dropout_p, "return_debug_mask": return_debug_mask})
    lse = _attend(Call(query, key, value, BATCHES["bhsd"], OFF, output, None, scale, is_causal, NO_WINDOW, True))
    return output, lse, None, None, query.shape[2], key.shape[2], *_of_no_dropout(query)


def flash_forward(query: Tensor, *arguments: Any, **options: Any) -> tuple[Tensor, ...]:
    """Computes attention on the kernels with the arguments and results of aten's `_flash_attention_forward`.

    Tensors are (batch, seq, heads, head_dim), or (rows, heads, head_dim) of packed sequences. Returns the output, the
    LSE, and what dropout would have drawn.
    """
    output = torch.empty_like(query)
    return output, flash_forward_into(output, query, *arguments, **options), *_of_no_dropout(query)


def flash_forward_into(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **others: Any,
) -> Tensor:
    """Computes attention on the kernels, writes the output to `out`, and returns the LSE.

    Tensors are (batch, seq, heads, head_dim), or (rows, heads, head_dim) with `cum_seq_q` and `cum_seq_k`. `others` are
    what this torch has besides, such as the block table of a key and a value in pages.
    """
    others |= {"dropout_p": dropout_p, "return_debug_mask": return_debug_mask}
    left, right = (OPEN if side is None else side for side in (window_size_left, window_size_right))
    where: Any = BATCHES["bshd"]
    if not (cum_seq_q is None and cum_seq_k is None):
        # Those of no tensor are refused below.
        used, table, pages = others.pop("seqused_k", None), others.pop("block_table", None), None
        if table is not None:
            # PyTorch asks for no offsets beside a table, and its callers give what they have.
            pages, cum_seq_k = pages_of(key, value, table, None, used)
            key, value = as_rows(key, value, pages)
        where = Packed(cum_seq_q, cum_seq_k, None, used, max_q, max_k, pages)  # type: ignore[arg-type]
    _refuse(others)
    return _attend(Call(query, key, value, where, OFF, out, None, scale, is_causal, (left, right), True))


def sdpa_backward(*given: Any, scale: float | None = None) -> tuple[Tensor, ...]:
    """Computes SDPA's gradients of query, key and value as those of `attention`.

    Its arguments are those of aten's `_scaled_dot_product_flash_attention_backward`. None of the operators that compute
    gradients is replaced, so none leads back here. Raises InputError for dropout, which only PyTorch's own forward has.
    """
    *tensors, _cum_seq_q, _cum_seq_k, _max_q, _max_k, dropout_p, is_causal, _philox_seed, _philox_offset = given
    _refuse({"dropout_p": dropout_p})
    gradients = dense(Saved(*tensors), None, causal=is_causal, scale=scale, window_size=NO_WINDOW, layout="bhsd")
    return gradients[:3]


REPLACED: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": sdpa_backward,
    "_flash_attention_forward": flash_forward,
    "_flash_attention_forward_no_dropout_inplace": flash_forward_into,
}


def _of_no_dropout(query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns three unset tensors for dropout's state, offset and mask, which nobody reads as there is no dropout."""
    return query.new_empty(2, dtype=torch.uint64), query.new_empty((), dtype=torch.uint64), query.new_empty(0)


def _attend(call: Call) -> Tensor:
    """Computes a call into its `out`, and returns the LSE, fp32 (batch, heads, seq_q) or packed (heads, rows)."""
    q, k, v, where = call[:4]
    packed = isinstance(where, Packed)
    if q.dim() == k.dim() == v.dim() == len(where.dimensions):
        if not packed:
            _check_lengths(call)
        if v.shape[-1] != q.shape[-1]:
            raise InputError(f"sdpa: value has head_dim {v.shape[-1]}, expected query's {q.shape[-1]}")
    # The backward of packed sequences is PyTorch's own.
    needs_gradient = packed and any(x.requires_grad for x in (q, k, v))
    if needs_gradient and (lacking := lacks_gradient(call, masked(call.causal, call.window_size))):
        raise forward_only(*lacking)
    # A tensor may require a gradient here: autograd is above.
    with torch.no_grad():
        _, lse = attend(call)
    # PyTorch's own forward of packed sequences, and its backward, have +inf for a row that sees no key.
    return lse.masked_fill_(lse.isneginf(), float("inf")) if packed else lse


def _refuse(others: dict[str, Any]) -> None:
    """Raises InputError where one of `others` is set, except a number of splits that asks for none."""
    for name, given in others.items():
        is_tensor = isinstance(given, Tensor)
        if is_tensor or (given and (name, given) != ("num_splits", 1)):
            found = "a tensor" if is_tensor else shown(given)
            raise InputError(f"sdpa: {name} is {found}, which the kernels do not have, expected none")


def _check_lengths(call: Call) -> None:
    """Raises InputError if there are no keys, or if there is a mask and seq_q differs from seq_kv."""
    seq_q, seq_kv = (call.where.canonical(x).shape[2] for x in call[:2])
    if seq_q != seq_kv and (call.causal or call.window_size != NO_WINDOW):
        raise InputError(
            f"sdpa: a causal mask or a window of {seq_q} queries and {seq_kv} keys, expected as many keys as queries: "
            "SDPA lets them begin together, the kernels let them end together"
        )
    if not seq_kv:
        # The LSE of a row without keys is -inf here, and +inf for the backward.
        raise InputError("sdpa: there are no keys, expected at least one")
