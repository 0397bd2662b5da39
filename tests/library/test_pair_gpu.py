"""`attention(..., backward=(dq, dkdv))` on a Hopper GPU: errors of drawn calls against fp64, and the same bits twice.

Each call is waited for with a limit. One that does not end ends its process of tests, and says which call it was. Other
seeds than the usual ones are those from TL_ATTENTION_SEED on.
"""

import os
import random
from collections.abc import Callable
from typing import TypeVar

import gpu_lost
import pytest
import torch
from gradients import exact, visible
from test_drawn_gradients import Drawn, gradients, wrong
from tiers import sampled
from torch import Tensor

from tl_attention import attention
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


def served(seed: int) -> Drawn:
    """Draws a call that the pair serves: its inputs have a mean, and its LSEs lie from -2000 to 2000."""
    case = Drawn.by(random.Random(seed))
    window = FULL_WINDOW if case.window == FULL_WINDOW else CAUSAL_WINDOW
    return case._replace(heads_kv=case.heads, window=window)


@pytest.mark.parametrize("block", sampled(range(BLOCKS), [3, 11]))
def test_drawn_gradients_err_by_at_most_twice_what_pytorchs_do(block) -> None:
    found = {}
    for number in range(CASES):
        seed = FIRST + 1000 * block + number
        case = served(seed)
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


def test_a_captured_step_has_the_eager_bits() -> None:
    *inputs, grad, _ = case_of(4, CAUSAL_WINDOW).tensors(FIRST)
    inputs = [x.requires_grad_() for x in inputs]

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attention(*inputs, causal=True, backward=PAIR), inputs, grad)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        bounded("the warm-up", step)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
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
