"""Keys in pages: attention_varlen with a block table gives what it gives of the same keys one behind the other."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

import gpu_lost
import pytest
import torch
from on_cpu import Kernels, on_cpu
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn

from tl_attention import InputError, attention_varlen
from tl_attention.flash_attn_interface import flash_attn_varlen_func, flash_attn_with_kvcache
from tl_attention.lab.oracle.pages import in_pages
from tl_attention.lab.oracle.reference import attention_and_lse
from tl_attention.op.integrations import sdpa
from tl_attention.op.packed import OF_PAGES
from tl_attention.op.pages import as_rows, pages_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.variant import Variant

__all__ = ["on_cpu"]
# Queries and keys of each sequence.
LENGTHS = (5, 300), (0, 7), (6, 0), (1, 512)
# Drawn block tables on a GPU.
TABLES = 2100
HEADS_KV, HEADS = 2, 4


def half(*shape: int, device: str = "cpu") -> Tensor:
    return torch.randn(shape, device=device).bfloat16()


def offsets(lengths: Iterable[int], device: str = "cpu") -> Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)


def pool(number: int, size: int, heads: int, head_dim: int, lies: str, device: str) -> Tensor:
    """Makes pages (number, size, heads, head_dim) that lie in memory as vLLM's layouts have them."""
    match lies:
        case "heads first":
            return half(number, heads, size, head_dim, device=device).transpose(1, 2)
        case "beside the other":
            return half(number, 2, size, heads, head_dim, device=device)[:, 1]
    return half(number, size, heads, head_dim, device=device)


def paged(
    size: int, lies: str = "", head_dim: int = 64, lengths: Sequence[tuple[int, int]] = LENGTHS, device: str = "cpu"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the arguments of a call with keys in pages in any order, and of one with the same keys packed."""
    used = [keys for _, keys in lengths]
    q = half(sum(queries for queries, _ in lengths), HEADS, head_dim, device=device)
    k, v = (half(sum(used), HEADS_KV, head_dim, device=device) for _ in "kv")
    seed = int(torch.randint(1 << 30, ()))
    pools, table = in_pages((k, v), used, size, seed, lambda shape, like: pool(*shape, lies, like.device))
    most = {"max_seqlen_q": max(queries for queries, _ in lengths), "max_seqlen_k": max(used)}
    common = {"q": q, "cu_seqlens_q": offsets((queries for queries, _ in lengths), device), **most}
    own = {"k": pools[0], "v": pools[1], "cu_seqlens_k": None, "block_table": table}
    seqused = torch.tensor(used, dtype=torch.int32, device=device)
    return common | own | {"seqused_k": seqused}, common | {"k": k, "v": v, "cu_seqlens_k": offsets(used, device)}


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


BOXES = {(128, 128): 128, (64, 128): 64, (128, 176): 16, (352, 176): 176, (24, 128): 8, (100, 128): 2, (1, 80): 1}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"block_table": 3}, "block_table is int, expected contiguous torch.int32"),
        ({"block_table": torch.zeros(4, 4)}, r"block_table is torch.float32 \(4, 4\) on cpu, expected contiguous"),
        ({"block_table": torch.zeros(4, 8, dtype=torch.int32)[:, ::2]}, "block_table is not contiguous torch.int32"),
        ({"block_table": torch.zeros(3, 4, dtype=torch.int32)}, "block_table has 3 sequences, expected 4"),
        ({"k": half(4, 4).to_sparse_csr()}, "k is a tensor with layout torch.sparse_csr, expected torch.strided"),
        ({"v": torch.nested.nested_tensor([half(2, 2)])}, "v is a tensor with layout nested, expected torch.strided"),
        ({"seqused_k": None}, "seqused_k is None beside a block_table, expected the number of keys"),
        ({"cu_seqlens_k": torch.zeros(5, dtype=torch.int32)}, "cu_seqlens_k is given beside a block_table"),
        ({"k": half(9, 2, 64)}, r"k is \(9, 2, 64\) beside a block_table, expected a tensor \(pages, page_size"),
        ({"v": half(9, 16, 2, 64)}, r"k .* and v \(9, 16, 2, 64\) do not match"),
        ({"v": half(9)}, r"v is \(9,\) beside a block_table, expected a tensor \(pages, page_size"),
        ({"k": half(19, 16, 2, 64), "v": half(19, 17, 2, 64)[:, 1:]}, "k and v have strides .* expected for both as many whole rows"),
        ({"check": True, "block_table": torch.full((4, 32), 999, dtype=torch.int32)},
            r"block_table names page 999 at 0 of sequence 0, expected 0 to \d+"),
        ({"check": True, "seqused_k": torch.tensor([513, 0, 0, 0], dtype=torch.int32)},
            "seqused_k has 513 for sequence 0, expected 0 to its 512 rows"),
    ],
)  # fmt: skip
def test_what_no_kernel_reads_is_told_in_one_line(change: dict[str, Any], said: str, on_cpu: Kernels) -> None:
    own, _ = paged(16)
    # What a right call leaves serves no wrong one.
    attention_varlen(**own)
    for _ in "again":
        with pytest.raises(InputError, match=f"^attention_varlen: {said}"):
            attention_varlen(**own | change)
    attention_varlen(**own)


def test_pages_of_known_sizes_that_lie_otherwise_are_told_in_one_line(on_cpu: Kernels) -> None:
    own, _ = paged(16)
    attention_varlen(**own)
    pages, size, *others = own["v"].shape
    for v in (half(pages, size + 1, *others)[:, 1:], half(pages, size, *others[::-1]).transpose(2, 3)[..., :1]):
        with pytest.raises(InputError, match="^attention_varlen: "):
            attention_varlen(**own | {"v": v})


def test_there_is_no_gradient(on_cpu: Kernels) -> None:
    own, _ = paged(16)
    with pytest.raises(InputError, match="an input requires a gradient, and with block_table there is no backward"):
        attention_varlen(**own | {"q": own["q"].requires_grad_()})


def cached(**arguments: Any) -> dict[str, Any]:
    """Returns the arguments of flash_attn_with_kvcache for 3 sequences of 40 keys at most, of which some are used."""
    found = {"q": half(3, 2, HEADS, 64), "k_cache": half(3, 40, HEADS_KV, 64), "v_cache": half(3, 40, HEADS_KV, 64)}
    return found | {"cache_seqlens": torch.tensor([40, 0, 7], dtype=torch.int32)} | arguments


def by_sequence(q: Tensor, keys: list[tuple[Tensor, Tensor]], causal: bool) -> Tensor:
    """Computes each sequence by itself, of q (sequences, rows, heads, head_dim) and keys (rows, heads_kv, head_dim)."""
    outputs = []
    for rows, (k, v) in zip(q, keys):
        options = {"mask": CAUSAL if causal else FULL, "scale": 0.125, "precise": True}
        exact, _ = attention_and_lse(*(x.transpose(0, 1)[None] for x in (rows, k, v)), **options)
        outputs.append(exact[0].transpose(0, 1).to(q.dtype))
    return torch.stack(outputs)


NEW = {name: half(3, 2, HEADS_KV, 64) for name in "kv"}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("new", [0, 3])
@pytest.mark.parametrize("of_pages", [False, True])
def test_a_cache_gets_new_keys_and_its_queries_see_their_own(
    of_pages: bool, new: int, causal: bool, on_cpu: Kernels
) -> None:
    lengths = torch.tensor([30, 0, 7], dtype=torch.int32)
    given = cached(cache_seqlens=lengths)
    table = torch.tensor([[4, 1, 7, 0], [2, 6, 3, 8], [9, 10, 5, 11]], dtype=torch.int32)
    if of_pages:
        given |= {"k_cache": half(12, 10, HEADS_KV, 64), "v_cache": half(12, 10, HEADS_KV, 64), "page_table": table}
    else:
        given |= {"cache_batch_idx": torch.tensor([2, 0, 1])}
    before = [given[name].clone() for name in ("k_cache", "v_cache")]
    fresh = [half(3, new, HEADS_KV, 64) for _ in "kv"] if new else [None, None]
    output, lse = flash_attn_with_kvcache(**given, k=fresh[0], v=fresh[1], causal=causal, return_softmax_lse=True)
    keys = []
    for sequence, (length, row) in enumerate(zip(lengths.tolist(), table.tolist() if of_pages else [[2], [0], [1]])):
        own = [torch.cat([x[page] for page in row])[:length] for x in before]
        keys.append(tuple(torch.cat([x, add[sequence]]) if add is not None else x for x, add in zip(own, fresh)))
    torch.testing.assert_close(output, by_sequence(given["q"], keys, causal), atol=0.02, rtol=0)
    assert lse.shape == (3, HEADS, 2)
    for name, old in zip(("k_cache", "v_cache"), before):
        changed = (given[name] != old).any(-1).any(-1).sum()
        assert changed == 3 * new


@pytest.mark.parametrize(
    "change, said",
    [
        ({"rotary_cos": half(3)}, "flash_attn: rotary_cos is given, which the kernels do not have, expected None"),
        ({"cache_leftpad": half(3)}, "flash_attn: cache_leftpad is given"),
        ({"qv": half(3)}, "flash_attn: qv is given"),
        ({"k": half(3, 1, HEADS_KV, 64)}, "flash_attn: one of k and v is given, expected both"),
        ({"cache_seqlens": torch.zeros(2)}, r"flash_attn_with_kvcache: cache_seqlens is \(2,\), expected an integer"),
        ({"k_cache": half(3, 40, 64)}, r"flash_attn_with_kvcache: k_cache is \(3, 40, 64\), expected"),
        ({"k_cache": half(2, 40, HEADS_KV, 64)}, "flash_attn_with_kvcache: k_cache has 2 sequences, expected at least"),
        ({"wrong": 1}, "flash_attn: no argument is named wrong"),
        ({"q": 3}, r"flash_attn_with_kvcache: q is int, expected \(batch, seq_q, heads, head_dim\)"),
        ({"cu_seqlens_q": 3}, r"flash_attn_with_kvcache: q is \(3, 2, 4, 64\), expected \(rows, heads, head_dim\) beside"),
        ({"cu_seqlens_q": 3, "q": half(6, HEADS, 64)}, "flash_attn_with_kvcache: cu_seqlens_q is int, expected torch"),
        (NEW | {"k": half(3, 2, HEADS_KV, 32)}, r"flash_attn_with_kvcache: k is \(3, 2, 2, 32\) torch.bfloat16 on cpu, expected"),
        (NEW | {"v": half(3, 2, HEADS_KV, 64).half()}, r"flash_attn_with_kvcache: v is \(3, 2, 2, 64\) torch.float16"),
        (NEW | {"v": half(3, 1, HEADS_KV, 64)}, "flash_attn_with_kvcache: k has 2 new keys and v 1, expected as many"),
        (NEW | {"check": True}, "flash_attn_with_kvcache: sequence 0 has 42 keys with the new ones, expected at most the 40"),
        (NEW | {"check": True, "cache_seqlens": 3, "cache_batch_idx": torch.tensor([0, 2, 2])},
            "flash_attn_with_kvcache: sequences 1 and 2 both append to page 2, expected a page of its own for each"),
        (NEW | {"softmax_scale": "x"}, "attention: scale is 'x'"),
        (NEW | {"q": half(3, 2, HEADS, 64).requires_grad_()}, "attention: an input requires a gradient, and with seqused"),
    ],
)  # fmt: skip
def test_what_a_cache_cannot_have_is_told_in_one_line(change: dict[str, Any], said: str, on_cpu: Kernels) -> None:
    given = cached() | change
    before = [given[name].clone() for name in ("k_cache", "v_cache")]
    with pytest.raises(InputError, match=f"^{said}"):
        flash_attn_with_kvcache(**given)
    # A call that is refused has written nothing.
    assert all(map(torch.equal, before, (given["k_cache"], given["v_cache"])))


def test_keys_without_a_place_are_not_written(on_cpu: Kernels) -> None:
    """A padded batch has sequences of -1 keys without pages, and a full one has no room."""
    table = torch.tensor([[0, 1], [-1, -1], [3, 2], [-1, -1]], dtype=torch.int32)
    given = {"q": half(4, 1, HEADS, 64), "page_table": table, "cache_seqlens": torch.tensor([4, -1, 8, -1]).int()}
    given |= {name: half(4, 4, HEADS_KV, 64) for name in ("k_cache", "v_cache")}
    new = {name: half(4, 1, HEADS_KV, 64) for name in "kv"}
    before = {name: given[name].clone() for name in ("k_cache", "v_cache")}
    output = flash_attn_with_kvcache(**given, **new)
    for name, cache in (("k", "k_cache"), ("v", "v_cache")):
        before[cache][1, 0] = new[name][0, 0]
        assert torch.equal(given[cache], before[cache])
    assert output[[1, 3]].eq(0).all() and output[[0, 2]].ne(0).any()
    for name, nowhere in (
        ("cache_seqlens", torch.tensor([8, -1, 9, -1]).int()),
        ("page_table", torch.full_like(table, -1)),
    ):
        flash_attn_with_kvcache(**given | {name: nowhere}, **new)
        assert all(torch.equal(given[cache], before[cache]) for cache in before)


def test_vllm_calls_pages_by_name(on_cpu: Kernels) -> None:
    own, packed = paged(16)
    metadata = {"scheduler_metadata": torch.zeros(3), "fa_version": 3, "num_splits": 0, "alibi_slopes": None}
    out = torch.empty_like(own["q"])
    found = flash_attn_varlen_func(**own, causal=True, window_size=[-1, -1], softmax_scale=0.125, out=out, **metadata)
    assert found is out and torch.equal(found, attention_varlen(**packed, causal=True, scale=0.125))


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0)])
def test_varlen_attn_takes_pages(window: tuple[int, int], on_cpu: Kernels) -> None:
    own, packed = paged(16)
    numbers = own["max_seqlen_q"], own["max_seqlen_k"]
    used = {"seqused_k": own["seqused_k"], "block_table": own["block_table"]}
    library = sdpa.register_kernels("CPU")
    try:
        for cu_seq_k in (None, packed["cu_seqlens_k"]):
            begins = own["cu_seqlens_q"], cu_seq_k
            found = varlen_attn(
                own["q"], own["k"], own["v"], *begins, *numbers, window_size=window, enable_gqa=True, **used
            )
            assert torch.equal(found, attention_varlen(**packed, causal=window == (-1, 0)))
        with pytest.raises(InputError, match="attention_varlen: seqused_k is None beside a block_table"):
            varlen_attn(
                own["q"], own["k"], own["v"], *begins, *numbers, enable_gqa=True, block_table=used["block_table"]
            )
    finally:
        del library


def test_opcheck_of_the_operator_with_pages(on_cpu: Kernels) -> None:
    own, _ = paged(16)
    pages, begins = pages_of(own["k"], own["v"], own["block_table"], None, own["seqused_k"])
    k, v = as_rows(own["k"], own["v"], pages)
    lengths = own["max_seqlen_q"], own["max_seqlen_k"], None, own["seqused_k"]
    options = dict(zip(OF_PAGES, pages[1:4])) | {"causal": True, "return_lse": True}
    given = own["q"], k, v, own["cu_seqlens_q"], begins, *lengths, None, own["block_table"]
    torch.library.opcheck(torch.ops.tl_attention.forward_varlen.default, given, options)


def test_a_cache_that_grows_is_traced(on_cpu: Kernels) -> None:
    caches = [cached(**{name: half(3, 1, HEADS_KV, 64) for name in "kv"}, cache_seqlens=torch.tensor([39, 0, 7]).int())]
    caches.append({name: x.clone() if isinstance(x, Tensor) else x for name, x in caches[0].items()})
    traced = torch.compile(
        lambda **given: flash_attn_with_kvcache(**given, causal=True), backend="eager", fullgraph=True
    )
    assert torch.equal(traced(**caches[0]), flash_attn_with_kvcache(**caches[1], causal=True))
    assert all(torch.equal(caches[0][name], caches[1][name]) for name in ("k_cache", "v_cache"))


def test_pages_are_traced_and_are_a_part_of_the_operators_options(on_cpu: Kernels) -> None:
    own, packed = paged(16)
    compiled = torch.compile(lambda **given: attention_varlen(**given, causal=True), backend="eager", fullgraph=True)
    assert torch.equal(compiled(**own), attention_varlen(**packed, causal=True))
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) if isinstance(x, Tensor) else x for name, x in own.items()}
        assert attention_varlen(**fake).shape == own["q"].shape


def share_a_page(own: dict[str, Any], packed: dict[str, Any], rng: random.Random) -> None:
    """Has two sequences name one page that both fill, as requests with a common prompt do, and have its keys."""
    size, table, begins = own["k"].shape[1], own["block_table"], packed["cu_seqlens_k"].tolist()
    pages = [keys // size for keys in own["seqused_k"].tolist()]
    long = [n for n, count in enumerate(pages) if count]
    if len(long) > 1:
        first, second = rng.sample(long, 2)
        page = rng.randrange(min(pages[first], pages[second]))
        table[second, page] = table[first, page]
        for rows in (packed["k"], packed["v"]):
            at, to = (begins[n] + page * size for n in (first, second))
            rows[to : to + size] = rows[at : at + size].clone()


@pytest.mark.parametrize("size", [1, 16])
def test_two_sequences_may_share_a_page(size: int, on_cpu: Kernels) -> None:
    own, packed = paged(size, lengths=[(3, 100), (2, 70), (1, 0)])
    before = packed["k"].clone()
    share_a_page(own, packed, random.Random(0))
    assert not torch.equal(packed["k"], before)
    assert torch.equal(attention_varlen(**own, causal=True), attention_varlen(**packed, causal=True))


@pytest.mark.gpu
def test_a_graph_is_replayed_with_other_tables_and_lengths() -> None:
    lengths = [(1, 3000), (1, 700), (200, 1500), (1, 1)]
    own, _ = paged(64, lengths=lengths, head_dim=128, device="cuda")
    call = lambda: attention_varlen(**own, causal=True, zero_unused=True)  # noqa: E731
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    table, used = own["block_table"].clone(), own["seqused_k"].clone()
    for order, keys in (
        ([2, 0, 1, 3], [1500, 3000, 700, 1]),
        ([0, 1, 2, 3], [129, 64, 1, 0]),
        ([0, 0, 0, 0], [3000] * 4),
    ):
        own["block_table"].copy_(table[order])
        own["seqused_k"].copy_(torch.tensor(keys, dtype=torch.int32))
        result.fill_(3)
        graph.replay()
        gpu_lost.wait()
        assert torch.equal(result, call()), (order, keys)
    own["seqused_k"].copy_(used)


@pytest.mark.gpu
@pytest.mark.parametrize("size", [1, 16, 64, 128])
def test_a_row_has_the_same_bits_wherever_its_pages_lie_and_whatever_is_beside_it(size: int) -> None:
    rng = random.Random(size)
    for _ in range(10):
        alone = (rng.choice((1, 40, 300)), rng.randrange(300, 3000))
        beside = [(rng.choice((1, 5, 400)), rng.randrange(400, 4000)) for _ in range(rng.randrange(1, 12))]
        place = rng.randrange(len(beside) + 1)
        lengths = [*beside[:place], alone, *beside[place:]]
        own, packed = paged(size, rng.choice(("", "heads first")), 128, lengths, "cuda")
        rows = slice(*packed["cu_seqlens_q"][place : place + 2].tolist())
        keys = slice(*packed["cu_seqlens_k"][place : place + 2].tolist())
        pools, table = in_pages((packed["k"][keys], packed["v"][keys]), [alone[1]], size, rng.randrange(1 << 30))
        single = {"q": own["q"][rows], "k": pools[0], "v": pools[1], "block_table": table, "cu_seqlens_k": None}
        single |= {"cu_seqlens_q": offsets([alone[0]], "cuda"), "seqused_k": own["seqused_k"][place : place + 1]}
        single |= {"max_seqlen_q": alone[0], "max_seqlen_k": alone[1]}
        options: dict[str, Any] = {"causal": rng.choice((True, False)), "invariant": True, "return_lse": True}
        found, expected = attention_varlen(**own, **options), attention_varlen(**single, **options)
        gpu_lost.wait()
        assert torch.equal(found[0][rows], expected[0]) and torch.equal(found[1][:, rows], expected[1]), lengths


@pytest.mark.gpu
@pytest.mark.parametrize("lies", ["", "heads first", "beside the other"])
@pytest.mark.parametrize("size", [1, 8, 16, 64, 100, 128, 352])
def test_rows_have_the_bits_of_packed_keys_wherever_their_pages_lie(size: int, lies: str) -> None:
    """Rows that no sequence uses have NaN. Both calls have the same schedule, and so add in the same order."""
    rng = random.Random(f"{size} {lies}")
    for _ in range(TABLES // 21):
        lengths = [
            (rng.choice((0, 1, 1, 1, 5, rng.randrange(300))), rng.choice((0, 1, 127, rng.randrange(3000))))
            for _ in range(rng.choice((1, 3, 20)))
        ]
        own, packed = paged(size, lies, rng.choice((64, 128)), [(1, 3000), *lengths], "cuda")
        share_a_page(own, packed, rng)
        options = rng.choice(({"causal": True}, {"schedule": "ragged"}, {"window_size": (500, 3)}, {"softcap": 15.0}))
        for invariant in (False, True):
            given: dict[str, Any] = {**options, "return_lse": True, "invariant": invariant}
            found, expected = attention_varlen(**own, **given), attention_varlen(**packed, **given)
            gpu_lost.wait()
            assert all(map(torch.equal, found, expected)), (lengths, given)
