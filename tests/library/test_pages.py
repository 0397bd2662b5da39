"""Keys in pages: attention_varlen with a block table gives what it gives of the same keys one behind the other."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from on_cpu import Kernels, on_cpu
from torch import Tensor

from tl_attention import InputError, attention_varlen
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Variant

__all__ = ["on_cpu"]
# Queries and keys of each sequence.
LENGTHS = (5, 300), (0, 7), (6, 0), (1, 512)
LONGEST = 6, 512
HEADS_KV, HEADS = 2, 4


def half(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def offsets(lengths: Any) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def pool(number: int, size: int, head_dim: int, lies: str) -> Tensor:
    """Makes pages (number, size, heads, head_dim) of NaN that lie in memory as vLLM's layouts have them."""
    shape = number, size, HEADS_KV, head_dim
    match lies:
        case "heads first":
            return torch.full((number, HEADS_KV, size, head_dim), torch.nan).bfloat16().transpose(1, 2)
        case "beside the other":
            return torch.full((number, 2, *shape[1:]), torch.nan).bfloat16()[:, 1]
    return torch.full(shape, torch.nan).bfloat16()


def paged(size: int, lies: str = "", head_dim: int = 64) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of a call with keys in pages in any order, and of one with the same keys packed."""
    used = [keys for _, keys in LENGTHS]
    width = -(-max(used) // size)
    number = len(used) * width + 3
    table = torch.randperm(number)[: len(used) * width].view(len(used), width).int()
    q = half(sum(queries for queries, _ in LENGTHS), HEADS, head_dim)
    k, v = (half(sum(used), HEADS_KV, head_dim) for _ in "kv")
    pools = []
    for packed in (k, v):
        pages = pool(number, size, head_dim, lies)
        for sequence, (first, keys) in enumerate(zip(offsets(used).tolist(), used)):
            for key in range(keys):
                pages[int(table[sequence, key // size]), key % size] = packed[first + key]
        pools.append(pages)
    cu_q, most = offsets(queries for queries, _ in LENGTHS), dict(zip(("max_seqlen_q", "max_seqlen_k"), LONGEST))
    common = {"q": q, "cu_seqlens_q": cu_q, **most}
    own = {"k": pools[0], "v": pools[1], "cu_seqlens_k": None, "block_table": table}
    seqused = torch.tensor(used, dtype=torch.int32)
    return common | own | {"seqused_k": seqused}, common | {"k": k, "v": v, "cu_seqlens_k": offsets(used)}


@pytest.mark.parametrize("lies", ["", "heads first", "beside the other"])
@pytest.mark.parametrize("size", [1, 16, 100, 128, 384])
@pytest.mark.parametrize("options", [{"causal": True}, {"return_lse": True, "window_size": (100, 3)}], ids=str)
def test_pages_give_what_packed_keys_give(size: int, lies: str, options: dict[str, Any], on_cpu: Kernels) -> None:
    own, packed = paged(size, lies)
    for _ in "again":
        found, expected = attention_varlen(**own, **options), attention_varlen(**packed, **options)
        found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
        assert all(map(torch.equal, found, expected))
    assert {variant.key_box for _, variant in on_cpu.asked} == {0, {1: 1, 16: 16, 100: 2}.get(size, 128)}


def test_a_box_is_the_largest_that_divides_a_page_and_a_block() -> None:
    boxes = {(size, block): Variant(128, "float16", CAUSAL).in_pages(size, block).key_box for size, block in BOXES}
    assert boxes == BOXES
    with pytest.raises(InputError, match="pages have 25 keys, expected an even number at head_dim 96"):
        Variant(96, "float16", CAUSAL).in_pages(25, 128)


BOXES = {(128, 128): 128, (64, 128): 64, (128, 176): 16, (352, 176): 176, (24, 128): 8, (100, 128): 2, (1, 80): 1}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"block_table": 3}, "block_table is int, expected contiguous torch.int32"),
        ({"block_table": torch.zeros(4, 4)}, r"block_table is torch.float32 \(4, 4\) on cpu, expected contiguous"),
        ({"block_table": torch.zeros(4, 8, dtype=torch.int32)[:, ::2]}, "block_table is not contiguous torch.int32"),
        ({"block_table": torch.zeros(3, 4, dtype=torch.int32)}, "block_table has 3 sequences, expected 4"),
        ({"seqused_k": None}, "seqused_k is None beside a block_table, expected the number of keys"),
        ({"cu_seqlens_k": torch.zeros(5, dtype=torch.int32)}, "cu_seqlens_k is given beside a block_table"),
        ({"k": half(9, 2, 64)}, r"k is \(9, 2, 64\) beside a block_table, expected a tensor \(pages, page_size"),
        ({"v": half(9, 16, 2, 64)}, r"k .* and v \(9, 16, 2, 64\) do not match"),
        ({"k": half(19, 16, 2, 64), "v": half(19, 17, 2, 64)[:, 1:]}, "k and v have strides .* expected for both as many whole rows"),
        ({"check": True, "block_table": torch.full((4, 32), 999, dtype=torch.int32)},
            r"block_table names page 999 at 0 of sequence 0, expected 0 to \d+"),
        ({"check": True, "seqused_k": torch.tensor([513, 0, 0, 0], dtype=torch.int32)},
            "seqused_k has 513 for sequence 0, expected 0 to its 512 rows"),
    ],
)  # fmt: skip
def test_what_no_kernel_reads_is_told_in_one_line(change: dict[str, Any], said: str, on_cpu: Kernels) -> None:
    own, _ = paged(16)
    with pytest.raises(InputError, match=f"^attention_varlen: {said}"):
        attention_varlen(**own | change)


def test_there_is_no_gradient(on_cpu: Kernels) -> None:
    own, _ = paged(16)
    with pytest.raises(InputError, match="an input requires a gradient, and with block_table there is no backward"):
        attention_varlen(**own | {"q": own["q"].requires_grad_()})
