"""A row's keys are computed in parts where few row tiles have many."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from matrix_cases import NO_CAP, Case
from matrix_check import faults
from on_cpu import Kernels, forget_plans, on_cpu
from torch import Tensor

from tl_attention import attention, attention_varlen
from tl_attention.codeproof.terms.facts import Facts
from tl_attention.codeproof.tiles.row_tiles import Cut, RowTile
from tl_attention.codeproof.warp_specialized.packed_proof import part_blocks
from tl_attention.compiler.toolchain import host_compiler
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.warp_specialized.device_code import MERGE_LISTED, MERGE_PARTS
from tl_attention.lab.measure import cell
from tl_attention.lab.measure.candidate import called
from tl_attention.lab.model.grid import Grid
from tl_attention.lab.oracle.reference import attention_and_lse
from tl_attention.op import batch
from tl_attention.op.few import (
    KeySplit,
    finest_split,
    may_be_split,
    packed_heads,
    result_places,
    results_of_parts,
    split_plan,
)
from tl_attention.op.launch import Launch
from tl_attention.problem.card import HOPPER
from tl_attention.problem.lengths import Lengths
from tl_attention.problem.mask import CAUSAL, FULL, INTEGERS, Mask, ceildiv
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import visited_blocks
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

__all__ = ["on_cpu"]
FEW = resolve("short_full").schedule
ONE = AttentionShape(1, 8, 4, 16384, 128)


def half(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float16)


@pytest.mark.parametrize("heads", [1, 8, 33, 100])
@pytest.mark.parametrize("keys", [2000, 5000, 16384, 131072])
def test_parts_fill_the_gpu_about_once(keys: int, heads: int) -> None:
    shape = replace(ONE, seq_kv=keys, heads=heads, heads_kv=heads)
    found = split_plan(shape, FEW, HOPPER.sms)
    blocks = ceildiv(keys, FEW.block_N)
    if heads == 100:
        assert found is None
    else:
        assert found and ceildiv(blocks, found.blocks) == found.number > 1
        assert heads * found.number <= HOPPER.sms
    # More SMs have more parts, and tiles that are as many as SMs have none.
    assert heads < 33 or split_plan(replace(shape, batch=9), FEW, HOPPER.sms) is None
    assert keys < 16384 or heads > 8 or found.number > split_plan(shape, FEW, 32).number  # type: ignore[union-attr]


def test_few_keys_and_what_has_no_parts_have_none() -> None:
    assert split_plan(ONE, FEW, 132)
    assert split_plan(replace(ONE, seq_kv=500), FEW, 132) is None
    assert split_plan(ONE, resolve("best_causal").schedule, 132) is None


def test_packed_sequences_may_be_split_where_there_is_room_for_two_parts() -> None:
    assert may_be_split(8, FEW, 132) and result_places(8, FEW, 132) == 4 * 132 // 8 == 66
    # So many heads of K and V fill the GPU.
    assert may_be_split(264, FEW, 132)
    assert not may_be_split(265, FEW, 132)
    assert may_be_split(265, FEW, 264)
    for name in ("best", "experiments/output_tma", "experiments/one_tile"):
        assert not may_be_split(8, resolve(name).schedule, 132)


@pytest.mark.parametrize("name, head_dim", [("ragged", 128), ("d64", 64), ("d256_causal", 256), ("short_d64", 64)])
@pytest.mark.parametrize("heads, heads_kv", [(1, 1), (64, 8), (71, 71)])
def test_room_for_parts_is_bounded_whatever_the_lengths(name: str, head_dim: int, heads: int, heads_kv: int) -> None:
    """All parts of an H200 have at most 96 MB."""
    schedule = resolve(name).schedule
    shape = AttentionShape(1, heads, 1, 1 << 20, head_dim, heads_kv=heads_kv, packed=True)
    variant = shape.variant(parts=True, tile_heads=packed_heads(shape, schedule)[1])
    launch = Launch.of(lambda *given: None, schedule, variant, shape, HOPPER.sms)
    assert 0 < 4 * (head_dim + 1) * launch.rows_of_parts < 96e6


def test_a_kernel_that_is_measured_has_the_parts_of_a_call() -> None:
    grouped = replace(ONE, heads=32, heads_kv=8)
    found = called("short_full", grouped, Planned(FEW))
    problem, heads = packed_heads(grouped, FEW)
    assert (found.shape, found.tile_heads, found.variant.parts) == (problem, heads, True) and heads == 4
    assert found.parts(problem) == split_plan(problem, FEW, found.sms)
    # A tile of 64 rows has 16 of each head, of which four queries fill a quarter.
    assert 4 < cell.visited(found) < 4.1
    assert len(Grid.of(found, 1).order) == grouped.batch * grouped.heads_kv
    # Small problems, on which it is verified, have parts too.
    small = replace(ONE, seq_kv=400)
    assert found.parts(small) == finest_split(small, FEW) == KeySplit(3, 1)
    many = called("short_full", replace(ONE, batch=100), Planned(FEW))
    assert many.parts(many.shape) is None and not many.variant.parts


def test_each_block_that_a_tile_sees_is_in_one_part() -> None:
    """A part without such a block has one of its own, which is masked, as the proof asks of a kernel."""
    rng = random.Random(3)
    for _ in range(2000):
        sides = [rng.choice((None, 0, 1, 100, 300)) for _ in range(2)]
        mask, sizes = Mask(*sides), Lengths(rng.randint(1, 200), rng.randint(129, 768))
        row = rng.randrange(0, sizes.seq_q, 64)
        cut = Cut(Variant(128, "float16", mask), 64, 64, 128, 1, "descending")
        tile = RowTile(cut, sizes, row, 0, 0, 0, {}, Facts(), INTEGERS)
        seen = range(*visited_blocks(sizes, mask, row, 64, 128, 0, INTEGERS))
        each = part_blocks(sizes.seq_kv)
        parts = range(ceildiv(sizes.seq_kv, 128 * each) + 1)
        own = [replace(tile, part=(part * each, (part + 1) * each), result=part) for part in parts]
        found = [range(*map(int, one.blocks)) for one in own]
        assert [block for part in found for block in part if block in seen] == [*seen]
        for part, blocks in enumerate(found):
            assert blocks and {block // each for block in blocks} == {part}


def test_results_of_parts_are_more_batches() -> None:
    output, lse = results_of_parts(half(2, 3, 5, 64), 7)
    assert (output.shape, lse.shape) == ((14, 3, 5, 64), (14, 3, 5))
    assert output.dtype == lse.dtype == torch.float32 and output.is_contiguous()


def test_what_has_none_is_refused() -> None:
    check = partial(lowering_of(FEW).check_variant, FEW)
    variant = Variant(128, "float16", parts=True)
    check(variant)
    check(replace(variant, packed=True))
    check(replace(variant, packed=True, group=4, tile_heads=4))
    with pytest.raises(ScheduleRefused, match="fixed sizes in parts of the keys"):
        check(replace(variant, group=1, sizes=Sizes(1, 8, 4, 16384)))
    best = resolve("best").schedule
    with pytest.raises(ValueError, match="part_blocks"):
        lowering_of(best).check_variant(best, variant)
    for options, words in (({"cluster": 2}, "cluster: 1"), ({"tile_scheduler": "one_tile"}, "a persistent tile_sched")):
        kernel = {**FEW.kernel.model_dump(), **options}
        with pytest.raises(ValueError, match=words):
            Schedule(**{**FEW.model_dump(), "kernel": kernel})


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 4.0}])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_call_gives_what_all_keys_at_once_give(layout, options, rows, on_cpu: Kernels) -> None:
    q, k, v = half(1, 4, rows, 128), half(1, 2, 3000, 128), half(1, 2, 3000, 128)
    given = [x if layout == "bhsd" else x.transpose(1, 2).contiguous() for x in (q, k, v)]
    mask = CAUSAL if "causal" in options else FULL
    wanted, wanted_lse = attention_and_lse(
        q, k, v, mask=mask, scale=128**-0.5, precise=True, softcap=options.get("softcap", 0.0)
    )
    for _ in range(2):
        out, lse = attention(*given, layout=layout, return_lse=True, **options)
        out = out if layout == "bhsd" else out.transpose(1, 2)
        assert (out - wanted).abs().max() < 2e-3 and (lse - wanted_lse).abs().max() < 1e-3
        alone = attention(*given, layout=layout, **options)
        assert torch.equal(alone if layout == "bhsd" else alone.transpose(1, 2), out)
    assert {variant.parts for _, variant in on_cpu.asked} == {True}
    # A prompt has no parts, so an invariant call has none.
    on_cpu.asked.clear()
    attention(*given, layout=layout, **options, invariant=True)
    assert {variant.parts for _, variant in on_cpu.asked} == {False}


def test_the_device_code_merges_parts_and_adds_sinks(tmp_path: Path) -> None:
    (tmp_path / "merge.h").write_text(MERGE_PARTS.text)
    (tmp_path / "merge_listed.h").write_text(MERGE_LISTED.text)
    compiler = [host_compiler() or "c++", "-std=c++20", "-O1", f"-I{tmp_path}"]
    subprocess.run([*compiler, Path(__file__).with_name("merge_on_host.cpp"), "-o", tmp_path / "merge"], check=True)
    found = subprocess.run([tmp_path / "merge"], check=True, capture_output=True, text=True).stdout.split()
    assert len(found) == 56 and max(map(float, found)) < 2e-6, found


MOST = 133
# Of each kind of call a few kernels are compiled.
KINDS = 12


def of_parts(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Case]]:
    """Yields calls of a few queries, and what they are, whose keys are in about this number of parts."""
    kind, rng = random.Random(f"kind {number % KINDS}"), random.Random(f"{number} parts")

    def forced(shape: AttentionShape, schedule: Schedule, sms: int) -> KeySplit:
        blocks = ceildiv(shape.seq_kv, schedule.block_N)
        each = ceildiv(blocks, number)
        return KeySplit(ceildiv(blocks, each), each)

    for head_dim, mask in ((128, "full"), (128, "causal"), (kind.choice((64, 128, 192, 256)), "window")):
        heads_kv, group = rng.choice(((1, 1), (2, 4), (1, 8), (3, 1), (1, 33)))
        # Up to 64 keys have no parts. Some calls have parts of several blocks, the last with any number of keys.
        keys = rng.randint(65, 128 * number * rng.choice((1, 1, 3)))
        right = kind.choice((-1, 3))
        window = (
            (rng.choice((0, 5, 200, keys // 2)), right if right < 0 else rng.choice((0, right)))
            if mask == "window"
            else (-1, -1)
        )
        case = Case(
            dtype=kind.choice(("float16", "bfloat16")),
            head_dim=head_dim,
            head_dim_v=head_dim,
            batch=rng.choice((1, 1, 2)),
            heads=heads_kv * group,
            heads_kv=heads_kv,
            seq_q=min(keys, rng.choice((1, 2, 5, 16, 64))),
            seq_kv=keys,
            causal=mask == "causal",
            window=window,
            cap=NO_CAP[0],
            sinks=kind.random() < 0.3,
            lse=kind.random() < 0.5,
            scale="default",
            layout=kind.choice(("bhsd", "bshd")),
            memory="contiguous",
            out="none",
        )
        with monkeypatch.context() as patched:
            forget_plans(patched)
            patched.setattr(batch, "split_plan", forced)
            yield f"{number} parts, {case}", case


@pytest.mark.parametrize("number", [1, 2, 7])
def test_any_number_of_parts_gives_what_all_keys_give(number, on_cpu: Kernels, monkeypatch) -> None:
    for what, case in of_parts(number, monkeypatch):
        assert not list(faults(case, number, "cpu")), what
    assert {variant.parts for _, variant in on_cpu.asked} == {True}


@pytest.mark.gpu
@pytest.mark.parametrize("shard", range(KINDS))
def test_up_to_133_parts_are_right(shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [
        f"{what}: {'; '.join(found)}"
        for number in range(1 + shard, MOST + 1, KINDS)
        for what, case in of_parts(number, monkeypatch)
        if (found := list(faults(case, number, "cuda")))
    ]
    assert not wrong, "\n".join(wrong)


def token(keys: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draws a query for each of 16 heads on 4, and keys that are computed in parts."""
    generator = torch.Generator("cuda").manual_seed(seed)
    sizes = (1, 16, 1, 128), (1, 4, keys, 128), (1, 4, keys, 128)
    return tuple(torch.randn(*n, generator=generator, device="cuda").half() for n in sizes)  # type: ignore[return-value]


@pytest.mark.gpu
def test_a_graph_has_parts_of_its_own_and_reads_what_is_there_when_it_is_replayed() -> None:
    q, k, v = token(9000, 1)
    attention(q, k, v)
    graphs, outputs = [torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()], []
    for graph in graphs:
        with torch.cuda.graph(graph):
            outputs.append(attention(q, k, v))
    for seed in range(2, 30):
        for place, numbers in zip((q, k, v), token(9000, seed)):
            place.copy_(numbers)
        for graph in graphs:
            graph.replay()
        wanted = attention(q, k, v)
        assert all(torch.equal(output, wanted) for output in outputs), seed


@pytest.mark.gpu
def test_a_graph_is_replayed_while_keys_grow() -> None:
    """Its keys are packed, so where they end lies on the GPU."""
    most, heads = 6000, 4
    q = torch.randn(2, 16, 128, device="cuda").half()
    k, v = (torch.randn(2 * most, heads, 128, device="cuda").half() for _ in range(2))
    of_q, of_k = (torch.tensor([0, n, 2 * n], device="cuda", dtype=torch.int32) for n in (1, most))
    used = torch.tensor([1, 1], device="cuda", dtype=torch.int32)
    call = partial(attention_varlen, q, k, v, of_q, of_k, 1, most, seqused_k=used)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    for keys in [*range(1, 140, 7), *range(141, most, 471), most]:
        used.fill_(keys)
        graph.replay()
        for number in range(2):
            mine = slice(number * most, number * most + keys)
            wanted, _ = attention_and_lse(
                q[number, :, None][None],
                *(x[mine].transpose(0, 1)[None] for x in (k, v)),
                mask=FULL,
                scale=128**-0.5,
                precise=True,
            )
            assert (output[number] - wanted[0, :, 0]).abs().max() < 2e-3, keys


@pytest.mark.gpu
def test_streams_have_parts_of_their_own() -> None:
    calls = [token(keys, keys) for keys in (3000, 9000, 20000)]
    wanted = [attention(*call) for call in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    found: list[list[Tensor]] = [[] for _ in calls]
    for _ in range(100):
        for stream, call, outputs in zip(streams, calls, found):
            with torch.cuda.stream(stream):
                outputs.append(attention(*call))
    torch.cuda.synchronize()
    for one, outputs in zip(wanted, found):
        assert all(torch.equal(one, output) for output in outputs)


@pytest.mark.parametrize(
    "queries, keys, parts",
    [
        ([1, 1], [900, 20], True),
        ([1, 1], [600, 600], True),
        # No sequence has more keys than a part has at least.
        ([1, 1], [512, 20], False),
        # As many queries as keys, as in training.
        ([600, 3], [600, 3], False),
        # Equal ones fill the GPU.
        ([1] * 70, [600] * 70, False),
        ([1] * 70, [600] * 69 + [6000], True),
        ([40, *[1] * 20], [40, *[600] * 20], True),
    ],
    ids=str,
)
def test_packed_sequences_are_split_if_that_may_be_sooner(queries, keys, parts, on_cpu: Kernels) -> None:
    q, k, v = half(sum(queries), 4, 64), half(sum(keys), 2, 64), half(sum(keys), 2, 64)
    offsets = [torch.tensor([0, *accumulate(of)], dtype=torch.int32) for of in (queries, keys)]
    for invariant in (None, True):
        on_cpu.asked.clear()
        attention_varlen(q, k, v, *offsets, max(queries), max(keys), invariant=invariant)
        assert {variant.parts for _, variant in on_cpu.asked} == {parts and not invariant}
