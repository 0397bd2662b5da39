"""`merge(outputs, lses)` combines attention over parts of the keys into attention over all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from tl_attention.errors import InputError


def merge(outputs: Tensor, lses: Tensor) -> tuple[Tensor, Tensor]:
    """Combines the outputs and LSEs of attention over parts of the keys into (output, LSE) over all keys.

    Each part is what `attention(..., return_lse=True)` returns for some of the keys: `torch.stack` the outputs and the
    LSEs. All computation is in fp32, on the device of the inputs. Gradients pass through.

    Args:
        outputs: (parts, batch, heads, seq, head_dim), of any floating-point dtype; each part is normalised by the sum
            of its own exponentials. There is at least one part.
        lses: (parts, batch, heads, seq), fp32: the natural logarithm of each row's sum of exponentials in a part.

    Returns: the output (batch, heads, seq, head_dim) in the dtype of `outputs`, and the LSE (batch, heads, seq), fp32.
        A row that sees no key in any part gets 0, and the LSE -inf. A part whose LSE is +inf has a sum that overflows
        fp32 and outweighs the others: the row gets the mean of the outputs of such parts, and the LSE +inf.
    Raises: InputError (a ValueError) if shapes, dtypes or devices do not fit together.
    """
    _check(outputs, lses)
    # A constant to autograd: whatever is subtracted, the result is the same.
    largest = lses.detach().amax(dim=0)
    # 0 for a row without any key, and 1 for a part of +inf: the difference of two infinities would be NaN.
    exponents = lses - torch.where(largest.isneginf(), 0.0, largest)
    weights = torch.where(lses.isposinf(), 0.0, exponents).exp()
    total = weights.sum(dim=0)
    total = torch.where(total == 0, 1.0, total)
    # What a part has for a row of which it sees no key does not count, whatever it is.
    parts = torch.where(lses.isneginf()[..., None], 0.0, outputs.float()) * weights[..., None]
    output = parts.sum(dim=0) / total[..., None]
    return output.to(outputs.dtype), largest + total.log()


def _check(outputs: Tensor, lses: Tensor) -> None:
    for name, tensor, dims in (
        ("outputs", outputs, "parts, batch, heads, seq, head_dim"),
        ("lses", lses, "parts, ..."),
    ):
        if not isinstance(tensor, Tensor):
            raise InputError(f"merge: {name} is {type(tensor).__name__}, expected a tensor ({dims})")
    if outputs.dim() != 5 or outputs.shape[0] == 0:
        raise InputError(
            f"merge: outputs is {tuple(outputs.shape)}, expected (parts, batch, heads, seq, head_dim), at least one part"
        )
    if lses.shape != outputs.shape[:-1]:
        raise InputError(f"merge: lses is {tuple(lses.shape)}, expected outputs' {tuple(outputs.shape[:-1])}")
    if not outputs.is_floating_point():
        raise InputError(f"merge: outputs is {outputs.dtype}, expected floating-point numbers")
    if lses.dtype != torch.float32:
        raise InputError(f"merge: lses is {lses.dtype}, expected {torch.float32}")
    if lses.device != outputs.device:
        raise InputError(f"merge: lses is on {lses.device}, expected outputs' {outputs.device}")
