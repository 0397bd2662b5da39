"""attention_varlen on a Hopper GPU: gradients, CUDA graphs, streams, threads, and the sanitizer's cases."""

from __future__ import annotations

import threading
from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
from packed_cases import RAGGED, ragged
from packed_check import faults
from torch import Tensor

from tl_attention import attention, attention_varlen

pytestmark = pytest.mark.gpu


def offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")


def drawn(
    q_of: list[int], k_of: list[int], heads: int = 6, heads_kv: int = 2, behind: int = 0, **more: Any
) -> list[Tensor]:
    sizes = ((sum(q_of), heads), (sum(k_of), heads_kv), (sum(k_of), heads_kv))
    found = [torch.randn(n + behind, h, 64, device="cuda", dtype=torch.bfloat16, **more) for n, h in sizes]
    return [*found, offsets(q_of), offsets(k_of)]


def one_by_one(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, **options: Any) -> Tensor:
    """Computes each sequence by attention(), and 0 for the rows behind the last."""
    found = []
    for (a, b), (c, d) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist())):
        if c == d:
            # attention() has no gradient of every window without keys.
            found.append(q.new_zeros((b - a, *q.shape[1:])))
            continue
        found.append(attention(q[None, a:b], k[None, c:d], v[None, c:d], layout="bshd", **options)[0])
    return torch.cat([*found, q.new_zeros((len(q) - cu_q[-1], *q.shape[1:]))])


@pytest.mark.parametrize(
    "options", [{}, {"causal": True}, {"window_size": (40, 20)}, {"causal": True, "window_size": (9, -1)}]
)
@pytest.mark.parametrize("q_of, k_of", [([70, 0, 3, 200], [70, 5, 300, 130]), ([1, 1, 129], [0, 1, 128])])
def test_gradients_are_those_of_each_sequence(options, q_of, k_of) -> None:
    inputs = drawn(q_of, k_of, behind=5, requires_grad=True)
    gradient = torch.randn_like(inputs[0])
    found = torch.autograd.grad(
        attention_varlen(*inputs, max(q_of), max(k_of), zero_unused=True, **options), inputs[:3], gradient
    )
    # Rows without keys: attention() computes them without a kernel.
    wanted = torch.autograd.grad(one_by_one(*inputs, **options), inputs[:3], gradient)
    for mine, other in zip(found, wanted, strict=True):
        assert mine.isfinite().all()
        assert (mine - other).abs().max() <= 2e-2 * max(1.0, float(other.abs().max()))
    assert not any(x[n:].any() for x, n in zip(found, (sum(q_of), sum(k_of), sum(k_of))))


@pytest.mark.parametrize("causal", [False, True])
def test_a_graph_is_replayed_with_other_offsets(causal) -> None:
    q, k, v, cu_q, cu_k = drawn([300, 200, 12], [400, 80, 32])
    call = lambda: attention_varlen(q, k, v, cu_q, cu_k, 512, 512, causal=causal, zero_unused=True)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    for q_of, k_of in (([300, 200, 12], [400, 80, 32]), ([0, 512, 0], [1, 500, 11]), ([5, 6, 7], [100, 0, 412])):
        cu_q.copy_(offsets(q_of))
        cu_k.copy_(offsets(k_of))
        result.fill_(3)
        graph.replay()
        assert torch.equal(result, attention_varlen(q, k, v, cu_q, cu_k, 512, 512, causal=causal, zero_unused=True))


def test_a_graph_of_few_queries_is_replayed_while_the_keys_grow() -> None:
    """The graph has as many parts as the longest sequences would have that it is made for."""
    q, k, v, cu_q, cu_k = drawn([1, 1, 1, 1], [6000, 6000, 6000, 6000], heads=16, heads_kv=4)
    used = torch.ones(4, dtype=torch.int32, device="cuda")
    call = lambda: attention_varlen(q, k, v, cu_q, cu_k, 1, 6000, seqused_k=used, causal=True)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    for keys in ([1, 1, 1, 1], [129, 1, 4000, 128], [130, 6000, 4001, 300], [6000] * 4):
        used.copy_(torch.tensor(keys, dtype=torch.int32))
        result.fill_(3)
        graph.replay()
        assert torch.equal(result, call())
        wanted = [
            attention(q[None, n : n + 1], k[None, 6000 * n :][:, :rows], v[None, 6000 * n :][:, :rows], layout="bshd")
            for n, rows in enumerate(keys)
        ]
        assert (result - torch.cat(wanted)[:, 0]).abs().max() < 1e-2


@pytest.mark.parametrize("share", [False, True], ids=["streams", "one-stream"])
def test_threads_do_not_meet(share: bool) -> None:
    """Threads that share a stream put the list and the main kernel of a launch there one by one."""
    batches = [drawn([100 * n + 3, 40, 500], [200, 70 * n + 1, 900]) for n in range(1, 7)]
    wanted = [attention_varlen(*batch, 700, 900, causal=True) for batch in batches]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        stream = torch.cuda.current_stream() if share else torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(20):
                found = attention_varlen(*batches[number], 700, 900, causal=True)
                stream.synchronize()
                if not torch.equal(found, wanted[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(batches))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_compiled_call_serves_new_batches_without_a_new_graph() -> None:
    call = torch.compile(
        lambda *given: attention_varlen(*given, causal=True, zero_unused=True), fullgraph=True, dynamic=True
    )
    with torch._dynamo.config.patch(error_on_recompile=True):
        for q_of in ([5, 9], [30, 2, 700], [64, 64, 64, 1]):
            inputs = (*drawn(q_of, q_of), max(q_of), max(q_of))
            assert torch.equal(call(*inputs), attention_varlen(*inputs, causal=True, zero_unused=True))


def test_many_more_sequences_than_rows() -> None:
    q_of = [int(n % 37 == 0) for n in range(9000)]
    inputs = drawn(q_of, q_of)
    found = attention_varlen(*inputs, 1, 1, causal=True)
    # A row that sees one key has that key's value.
    assert torch.equal(found, inputs[2].repeat_interleave(3, dim=1))


def test_wrong_offsets_stay_within_the_tensors() -> None:
    q, k, v, cu_q, cu_k = drawn([300, 200, 12], [400, 80, 32])
    whole = torch.full((1024, 6, 64), 7.0, device="cuda", dtype=torch.bfloat16)
    out = whole[200 : 200 + len(q)]
    for wrong in ([0, 500, 0, 500], [-90, 40, 600, 700], [512, 300, 100, 0], [0, 2**30, 2**31 - 1, 5]):
        cu_q.copy_(torch.tensor(wrong, dtype=torch.int32))
        cu_k.copy_(torch.tensor(wrong[::-1], dtype=torch.int32))
        attention_varlen(q, k, v, cu_q, cu_k, 512, 512, causal=True, out=out)
        torch.cuda.synchronize()
        assert (whole[:200] == 7).all() and (whole[200 + len(q) :] == 7).all()


@pytest.mark.parametrize("kernel", RAGGED[:8], ids=str)
def test_for_the_sanitizer(kernel) -> None:
    """Runs a few ragged batches of a mask: `compute-sanitizer python -m pytest -m gpu -k sanitizer` reads along."""
    for seed, case in enumerate([*ragged(kernel, 12)][:3]):
        assert not [*faults(case, seed)]
