"""flash_attn_with_kvcache computes what FlashAttention-3's test of its cache asks, as far as it is served here.

    pytest -m gpu -n 15 --dist worksteal tests/library/test_cache_matrix.py

Not served, and not here: rotary embeddings, left padding, qv, chunks and FP8.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, product
from typing import Any, NamedTuple

import gpu_lost
import pytest
import torch
from on_cpu import Kernels, take_for_a_gpu
from torch import Tensor

from tl_attention.flash_attn_interface import flash_attn_with_kvcache
from tl_attention.lab.oracle.reference import attention_and_lse, compare, compare_lse
from tl_attention.problem.mask import Mask

SEQUENCES, HEADS = 5, 6
PAGE_SIZES = (None, 1, 4, 64, 128)
# At head_dim 96 pages have an even number of keys.
EVEN = tuple(size for size in PAGE_SIZES if size != 1)
HEADS_KV = (6, 2, 1)
HEAD_SIZES = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256))
LENGTHS = (
    (1, 128),
    (1, 339),
    (3, 1024),
    (64, 800),
    (64, 256),
    (3, 799),
    (64, 2048),
    (16, 20000),
    (128, 128),
    (256, 512),
)
SMALL = ((1, 128), (3, 99), (16, 40))
DRAWN = 60


class Case(NamedTuple):
    """A Case is one call: queries and keys of each sequence at most, and what else it asks."""

    seq_q: int
    seq_k: int
    page_size: int | None
    heads_kv: int
    head_dim: int
    head_dim_v: int
    new: int  # keys that are added
    causal: bool
    window: tuple[int, int]
    packed: bool  # whether queries are those of cu_seqlens_q
    by_index: bool  # whether cache_batch_idx names the sequences of a cache without pages
    splits: int
    seed: int


def cases(rng: random.Random, number: int, lengths: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    for seed in range(number):
        seq_q, seq_k = rng.choice(lengths)
        head_dim, head_dim_v = rng.choice(HEAD_SIZES)
        window = rng.choice(((-1, -1), (-1, -1), (rng.randrange(seq_k), rng.randrange(seq_k))))
        yield Case(
            *(
                seq_q,
                seq_k,
                rng.choice(EVEN if head_dim == 96 else PAGE_SIZES),
                rng.choice(HEADS_KV),
                head_dim,
                head_dim_v,
            ),
            new=rng.choice((0, 0, seq_q, rng.randrange(1, seq_q + 1))),
            causal=rng.choice((False, True)) and window == (-1, -1),
            window=window,
            packed=rng.choice((False, True)),
            by_index=rng.choice((False, True)) and head_dim != 96,
            splits=rng.choice((0, 1)),
            seed=seed,
        )


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "cpu":
        take_for_a_gpu(monkeypatch, Kernels().kernel_of)
    return request.param


def sequences_of(case: Case, device: str) -> tuple[dict[str, Any], list[tuple[Tensor, Tensor, Tensor]], list[int]]:
    """Returns (the arguments of a call, q, k and v of each sequence with its new keys, how many queries each has)."""
    draw, rng = torch.Generator(device).manual_seed(case.seed), random.Random(case.seed)

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=draw, device=device).add(0.5).bfloat16()

    queries = [rng.randrange(case.seq_q + 1) if case.packed else case.seq_q for _ in range(SEQUENCES)]
    before = [rng.randrange(case.seq_k - case.new + 1) if case.seq_k >= case.new else 0 for _ in range(SEQUENCES)]
    # Pages in any order, and rows of a cache, have NaN where no key is.
    size = case.page_size or case.seq_k + case.new
    width = -(-(case.seq_k + case.new) // size)
    number = SEQUENCES * width + 2
    order = torch.randperm(number, generator=draw, device=device)[: SEQUENCES * width]
    if case.page_size is None and not case.by_index:
        order = torch.arange(SEQUENCES, device=device)
    table = order.view(SEQUENCES, width).int()
    caches = [
        normal(number, size, case.heads_kv, columns).fill_(torch.nan) for columns in (case.head_dim, case.head_dim_v)
    ]
    new = [normal(SEQUENCES, case.new, case.heads_kv, columns) for columns in (case.head_dim, case.head_dim_v)]
    q = normal(SEQUENCES, case.seq_q, HEADS, case.head_dim)
    each = []
    for n, keys in enumerate(before):
        own = [normal(keys, case.heads_kv, cache.shape[-1]) for cache in caches]
        place = torch.arange(keys, device=device)
        for cache, rows in zip(caches, own):
            cache[table[n, place // size].long(), place % size] = rows
        k, v = (torch.cat([rows, added[n]]) for rows, added in zip(own, new))
        each.append((q[n, : queries[n]], k, v))
    given: dict[str, Any] = {
        "q": torch.cat([of_one for of_one, _, _ in each]) if case.packed else q,
        "k_cache": caches[0],
        "v_cache": caches[1],
        "causal": case.causal,
        "window_size": case.window,
        "cache_seqlens": torch.tensor(before, dtype=torch.int32, device=device),
        **({"k": new[0], "v": new[1]} if case.new else {}),
        "num_splits": case.splits,
        "return_softmax_lse": True,
        "check": True,
    }
    if case.page_size is not None:
        given["page_table"] = table
    elif case.by_index:
        given["cache_batch_idx"] = order.int()
    if case.packed:
        begins = torch.tensor([0, *accumulate(queries)], dtype=torch.int32, device=device)
        given |= {"cu_seqlens_q": begins, "max_seqlen_q": case.seq_q}
    return given, each, queries


def fault_of(case: Case, device: str) -> str:
    """Says what is wrong with a call, "" if nothing is."""
    given, each, queries = sequences_of(case, device)
    if not sum(queries):
        return ""
    output, lse = flash_attn_with_kvcache(**given)
    if device == "cuda":
        gpu_lost.wait()
    if not case.packed:
        output, lse = output.flatten(0, 1), lse.transpose(0, 1).flatten(1)
    mask = Mask(None, 0) if case.causal else Mask(*(None if side < 0 else side for side in case.window))
    results = zip(output.split(queries), lse.split(queries, dim=1), each)
    for n, (found, of_rows, sequence) in enumerate(results):
        if not queries[n]:
            continue
        q, k, v = (x.transpose(0, 1)[None] for x in sequence)
        options: dict[str, Any] = {"mask": mask, "scale": case.head_dim**-0.5}
        exact, peer = (attention_and_lse(q, k, v, precise=precise, **options) for precise in (True, False))
        reports = compare(found.transpose(0, 1)[None], exact[0], peer[0]), compare_lse(of_rows[None], exact[1], peer[1])
        if not all(report.ok for report in reports):
            return f"{case}, sequence {n} of {queries[n]} queries on {len(sequence[1])} keys: {reports}"
    return ""


# Side by side they compile their kernels.
@pytest.mark.parametrize("shard", range(8))
def test_a_cache_gives_what_its_keys_give(shard: int, device: str) -> None:
    on_gpu = device == "cuda"
    drawn = cases(random.Random(shard), DRAWN if on_gpu else 6, LENGTHS if on_gpu else SMALL)
    faults = [fault for case in drawn if (fault := fault_of(case, device))]
    assert not faults, "\n".join(faults)


def test_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels()
    kernels.fault = lambda tensors: tensors.get("Merged", tensors["Output"])[-1:].add_(0.1)
    take_for_a_gpu(monkeypatch, kernels.kernel_of)
    case = Case(3, 40, 4, 2, 64, 64, 2, True, (-1, -1), False, False, 1, 0)
    assert fault_of(case, "cpu")
    assert {(size, packed) for size, packed in product(PAGE_SIZES, (False, True))} == {
        (case.page_size, case.packed) for case in cases(random.Random(0), 200, SMALL)
    }
