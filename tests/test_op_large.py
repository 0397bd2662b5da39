"""Tensors of more than 2^31 elements, on a Hopper GPU with 40 GB free."""

from __future__ import annotations

import math

import pytest
import torch
from test_op import check

from tl_attention import attention

# Of the last of 2 x 64 heads a kernel reads, or writes, what lies behind the first 2^31 elements.
LONG, SHORT = 2**17 + 4096, 300


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", [None, "seed", "mma_sync"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("seq_q, seq_kv", [(LONG, SHORT), (SHORT, LONG)], ids=["queries", "keys"])
def test_what_lies_behind_2_to_the_31_elements_is_read_and_written(seq_q, seq_kv, layout, schedule):
    generator = torch.Generator("cuda").manual_seed(seq_q)
    places = {"bhsd": lambda seq: (2, 64, seq, 128), "bshd": lambda seq: (2, seq, 64, 128)}[layout]
    sizes = [places(seq) for seq in (seq_q, seq_kv, seq_kv)]
    assert max(map(math.prod, sizes)) > 2**31
    q, k, v = (torch.randn(*size, dtype=torch.float16, device="cuda", generator=generator) for size in sizes)
    output = attention(q, k, v, layout=layout, schedule=schedule)
    heads = [x if layout == "bhsd" else x.transpose(1, 2) for x in (output, q, k, v)]
    for batch, head in ((0, 0), (1, 63)):
        check(*(x[batch : batch + 1, head : head + 1] for x in heads))
