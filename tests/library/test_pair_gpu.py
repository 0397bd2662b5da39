"""Gradients by a pair (dq, dkdv) on a Hopper GPU: errors of drawn calls against fp64, and the same bits twice.

Of packed sequences each has the same bits in any order, and with NaNs in another.
Each call is waited for with a limit. One that does not end ends its process of tests, and says which call it was. Other
seeds than the usual ones are those from TL_ATTENTION_SEED on.
"""

import os
import random
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TypeVar

import gpu_lost
import pytest
import torch
from gradients import exact, visible
from test_drawn_gradients import Drawn, gradients, norm, wrong
from test_packed_pair import Lengths, begins, wanted
from tiers import sampled
from torch import Tensor

from tl_attention import attention, attention_varlen
from tl_attention.problem.mask import OPEN

pytestmark = pytest.mark.gpu

PAIR = ("dq", "dkdv")
FULL_WINDOW, CAUSAL_WINDOW = (OPEN, OPEN), (OPEN, 0)
BLOCKS, CASES, REPETITIONS = 20, 50, 100
FIRST = int(os.environ.get("TL_ATTENTION_SEED", "0")) + 5 * 10**6
Found = TypeVar("Found")


def bounded(what: object, call: Callable[[], Found]) -> Found:
    """Returns what a call gives once the GPU is through with it; where it does not end, ends this process."""
    try:
        found = call()
        gpu_lost.wait()
    except gpu_lost.Lost as lost:
        gpu_lost.leave(f"{what}: {lost}")
    return found


@pytest.mark.parametrize("block", sampled(range(BLOCKS), [3, 11]))
def test_drawn_gradients_err_by_at_most_twice_what_pytorchs_do(block) -> None:
    found = {}
    for number in range(CASES):
        seed = FIRST + 1000 * block + number
        case = Drawn.by(random.Random(seed))
        said, _ = bounded((seed, case), lambda: wrong(case, seed, backward=PAIR))
        if said:
            found[seed, case] = said
    assert not found, "\n".join(f"{seed} {case}: {said}" for (seed, case), said in found.items())


# Batch, heads, seq_q, seq_kv, head_dim. Those of many tiles have several for each SM.
SHAPES = [
    (1, 1, 1, 1, 64),
    (2, 3, 1, 700, 128),
    (2, 3, 700, 1, 64),
    (1, 8, 704, 704, 64),
    (2, 4, 129, 1000, 128),
    (2, 4, 1000, 129, 64),
    (8, 16, 700, 700, 128),
    (16, 16, 333, 500, 64),
    (4, 16, 2048, 2048, 128),
    (4, 16, 2049, 2047, 64),
    (1, 40, 4096, 4096, 128),
    (64, 16, 100, 100, 64),
]


def case_of(number: int, window: tuple[int, int], level: float | None = None) -> Drawn:
    batch, heads, seq_q, seq_kv, size = SHAPES[number]
    dtype = (torch.bfloat16, torch.float16)[number % 2]
    return Drawn(batch, heads, heads, seq_q, seq_kv, size, window, dtype, level, sinks=False, swapped=False)


@pytest.mark.parametrize("window", [FULL_WINDOW, CAUSAL_WINDOW], ids=["full", "causal"])
@pytest.mark.parametrize("number", [6, 7, 11])
def test_gradients_of_several_tiles_for_each_sm_err_as_little(number, window) -> None:
    for seed, level in enumerate((None, -120.0), FIRST + number):
        case = case_of(number, window, level)
        said, _ = bounded((seed, case), lambda: wrong(case, seed, backward=PAIR))
        assert not said, f"{seed} {case}: {said}"


@pytest.mark.parametrize("number", [0, 2, 3, 4, 5])
def test_the_lse_has_a_gradient_and_one_of_0_changes_no_bit(number) -> None:
    case = case_of(number, (FULL_WINDOW, CAUSAL_WINDOW)[number % 2])
    *inputs, grad, sinks = case.tensors(FIRST + number)
    inputs, seen = [x.requires_grad_() for x in (*inputs, sinks)], visible(case.seq_q, case.seq_kv, *case.window).cuda()

    def found(d_lse: Tensor) -> tuple[Tensor, ...]:
        options = {"window_size": case.window, "sinks": inputs[3], "backward": PAIR}
        return torch.autograd.grad(attention(*inputs[:3], return_lse=True, **options), inputs, (grad, d_lse))

    d_lse = torch.randn(case.batch, case.heads, case.seq_q, device="cuda")
    wanted = exact(*inputs[:3], grad, seen, case.size**-0.5, inputs[3], d_lse)
    for gradient, value in zip(bounded(case, lambda: found(d_lse)), wanted, strict=True):
        torch.testing.assert_close(gradient.double(), value, atol=0.05, rtol=0.05)
    plain = attention(*inputs[:3], window_size=case.window, sinks=inputs[3], backward=PAIR)
    without = bounded(case, lambda: torch.autograd.grad(plain, inputs, grad))
    assert all(map(torch.equal, bounded(case, lambda: found(torch.zeros_like(d_lse))), without))


@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_the_same_call_has_the_same_bits_beside_another_kernel(number) -> None:
    case = case_of(number, (FULL_WINDOW, CAUSAL_WINDOW)[number // 2 % 2])
    *inputs, grad, _ = case.tensors(FIRST + number)
    beside, matrix = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)

    def step() -> list[Tensor]:
        return gradients(lambda *given: attention(*given, window_size=case.window, backward=PAIR), grad, inputs)

    first = bounded(case, step)
    assert all(x.isfinite().all() for x in first)
    for repetition in range(REPETITIONS):
        with torch.cuda.stream(beside):
            for _ in range(4):
                matrix @ matrix
        found = bounded(case, step)
        assert all(map(torch.equal, found, first)), f"{case}: repetition {repetition}"


def captured_step(step: Callable[[], Found]) -> tuple[torch.cuda.CUDAGraph, Found]:
    """Captures a step in a graph, behind a warm-up on a stream of its own, and returns what replays give."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        bounded("the warm-up", step)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    return graph, found


def test_a_captured_step_has_the_eager_bits() -> None:
    *inputs, grad, _ = case_of(4, CAUSAL_WINDOW).tensors(FIRST)
    inputs = [x.requires_grad_() for x in inputs]

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention(*inputs, causal=True, backward=PAIR), inputs, grad)

    graph, captured = captured_step(step)
    with torch.no_grad():
        inputs[0].mul_(0.5)
    bounded("the replay", graph.replay)
    assert all(map(torch.equal, captured, bounded("the eager step", step)))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_has_the_eager_bits(backend) -> None:
    torch._dynamo.reset()
    *inputs, grad, _ = case_of(4, CAUSAL_WINDOW).tensors(FIRST)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True, backward=PAIR)

    compiled = torch.compile(call, fullgraph=True, backend=backend)
    found, expected = (bounded(backend, lambda of=of: gradients(of, grad, inputs)) for of in (compiled, call))
    assert all(map(torch.equal, found, expected))


# --- packed sequences ------------------------------------------------------------------------------------------------

HEADS = ((4, 4), (4, 2), (8, 1))


def lengths_of(rng: random.Random) -> Lengths:
    """Draws (queries, keys) of up to 12 sequences, each of which may be 0."""

    def length() -> int:
        return rng.choice((0, 1, 63, 64, 65, 127, 128, 129, rng.randint(1, 700), rng.randint(1, 700)))

    drawn = [(length(), length()) for _ in range(rng.randint(1, 12))]
    equal = rng.random() < 0.5
    return [(1, 1), *((keys if equal else queries, keys) for queries, keys in drawn)]


def packed(
    lengths: Lengths, heads: int, heads_kv: int, size: int, dtype: torch.dtype, seed: int, unused: int = 0
) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    """Draws q, k, v, the output's gradient, and offsets of sequences among as many unused rows, which are NaN."""
    generator = torch.Generator("cuda").manual_seed(seed)
    totals = [sum(of) + 2 * unused for of in zip(*lengths)]
    sides = ((totals[0], heads), (totals[1], heads_kv), (totals[1], heads_kv), (totals[0], heads))
    q, k, v, grad = (torch.randn(*of, size, generator=generator, device="cuda") * 0.7 + 0.1 for of in sides)
    if unused:
        for x in (q, k, v, grad):
            x[:unused], x[-unused:] = torch.nan, torch.nan
    cu = [of.cuda() for of in begins(lengths, (unused, unused))]
    return [x.to(dtype) for x in (q, k, v)], grad.to(dtype), cu


def of_packed(inputs: Sequence[Tensor], grad: Tensor, cu: Sequence[Tensor], **options: object) -> list[Tensor]:
    def call(*given: Tensor) -> Tensor:
        return attention_varlen(*given, *cu, grad.shape[0], given[1].shape[0], **{"backward": PAIR} | options)

    return bounded((cu, options), lambda: gradients(call, grad, list(inputs)))


@pytest.mark.parametrize("block", sampled(range(BLOCKS), [3, 11]))
def test_packed_gradients_err_by_at_most_twice_what_flash_attention_2s_do(block) -> None:
    found = {}
    for number in range(CASES // 2):
        seed = FIRST + 1000 * block + number
        rng = random.Random(seed)
        lengths, heads, size = lengths_of(rng), rng.choice(HEADS), rng.choice((64, 128))
        causal, unused, dtype = rng.random() < 0.5, rng.choice((0, 0, 9)), rng.choice((torch.float16, torch.bfloat16))
        inputs, grad, cu = packed(lengths, *heads, size, dtype, seed, unused)
        exact = wanted(inputs, grad, cu, CAUSAL_WINDOW if causal else FULL_WINDOW)
        ours, others = (of_packed(inputs, grad, cu, causal=causal, backward=named) for named in (PAIR, None))
        for name, own, other, value in zip(("dq", "dk", "dv"), ours, others, exact):
            assert own.isfinite().all(), f"{seed}: {name} of {lengths}"
            # A row of one key has products that cancel to nothing.
            least = max(norm(value.to(dtype) - value), 1e-6 * norm(grad.nan_to_num()))
            if norm(own - value) > 2 * max(norm(other - value), least):
                found[seed, name] = lengths, heads, size, norm(own - value), norm(other - value)
            side = name != "dq"
            begin, end = cu[side][0], cu[side][-1]
            assert not own[:begin].any() and not own[end:].any()
    assert not found, found


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_a_sequence_has_the_same_bits_in_any_order_alone_and_beside_nans(causal, heads) -> None:
    lengths = [(300, 300), (0, 7), (129, 700), (1, 64), (513, 130)]
    inputs, grad, _ = packed(lengths, *heads, 128, torch.bfloat16, FIRST)
    parts = [x.split([of[side] for of in lengths]) for x, side in zip((*inputs, grad), (0, 1, 1, 0))]

    def each(order: Sequence[int], spoiled: int | None = None) -> dict[int, tuple[Tensor, ...]]:
        chosen = [[torch.full_like(part[n], torch.nan) if n == spoiled else part[n] for n in order] for part in parts]
        *given, of_output = map(torch.cat, chosen)
        taken = [lengths[n] for n in order]
        cu = [of.cuda() for of in begins(taken)]
        found = of_packed(given, of_output, cu, causal=causal, invariant=True)
        split = zip(*(x.split([of[side] for of in taken]) for x, side in zip(found, (0, 1, 1))))
        return dict(zip(order, split))

    whole, rng = each(range(5)), random.Random(FIRST)
    orders = [(n,) for n in range(5) if n != 1] + [tuple(rng.sample(range(5), 5)) for _ in range(20)]
    for order in orders:
        for number, found in each(order).items():
            assert all(map(torch.equal, found, whole[number])), f"sequence {number} in the order {order}"
    for number, found in each(range(5), spoiled=2).items():
        assert number == 2 or all(map(torch.equal, found, whole[number])), f"sequence {number} beside NaNs"


def test_rows_that_do_not_count_change_no_bit() -> None:
    lengths, used = [(300, 400), (64, 7), (513, 130), (9, 140)], [(290, 129), (0, 7), (513, 0), (1, 64)]
    inputs, grad, cu = packed(lengths, 4, 2, 128, torch.bfloat16, FIRST)
    begin = [[0, *accumulate(of[side] for of in lengths)] for side in (0, 1)]
    counts = [
        torch.cat([torch.arange(at, at + of[side]) for at, of in zip(begin[side], used)]).cuda() for side in (0, 1)
    ]
    alone = of_packed(
        [x[counts[side]] for x, side in zip(inputs, (0, 1, 1))], grad[counts[0]], [of.cuda() for of in begins(used)],
        causal=True, invariant=True,
    )  # fmt: skip
    for x, side in zip((*inputs, grad), (0, 1, 1, 0)):
        x[torch.ones(len(x), dtype=torch.bool, device="cuda").index_fill_(0, counts[side], False)] = torch.nan
    of_used = {
        f"seqused_{name}": torch.tensor([of[side] for of in used], dtype=torch.int32, device="cuda")
        for side, name in enumerate("qk")
    }
    found = of_packed(inputs, grad, cu, causal=True, invariant=True, **of_used)
    for whole, part, side in zip(found, alone, (0, 1, 1)):
        assert torch.equal(whole, torch.zeros_like(whole).index_copy_(0, counts[side], part))


def test_packed_gradients_have_the_same_bits_beside_another_kernel() -> None:
    rng = random.Random(FIRST)
    lengths = [(length, length) for length in (rng.randint(100, 4000) for _ in range(12))]
    inputs, grad, cu = packed(lengths, 32, 8, 128, torch.bfloat16, FIRST)
    beside, matrix = torch.cuda.Stream(), torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    first = of_packed(inputs, grad, cu, causal=True)
    for repetition in range(REPETITIONS):
        with torch.cuda.stream(beside):
            for _ in range(4):
                matrix @ matrix
        found = of_packed(inputs, grad, cu, causal=True)
        assert all(map(torch.equal, found, first)), f"repetition {repetition}"


def test_a_captured_packed_step_serves_other_offsets() -> None:
    """A captured launch reads where sequences lie each time that it is replayed."""
    inputs, grad, cu = packed([(300, 200), (212, 312)], 4, 2, 64, torch.bfloat16, FIRST)
    inputs = [x.requires_grad_() for x in inputs]

    def step() -> tuple[Tensor, ...]:
        output = attention_varlen(*inputs, *cu, 512, 512, causal=True, backward=PAIR)
        return torch.autograd.grad(output, inputs, grad)

    graph, captured = captured_step(step)
    for lengths in ([(300, 200), (212, 312)], [(0, 512), (512, 0)], [(1, 400), (511, 112)]):
        for offsets, other in zip(cu, begins(lengths)):
            offsets.copy_(other)
        bounded("the replay", graph.replay)
        assert all(map(torch.equal, captured, bounded("the eager step", step))), lengths
