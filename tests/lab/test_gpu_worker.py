"""The worker checks kernels: here PyTorch's attention on the CPU stands in for kernels, some with faults."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from mutations import shipped
from on_cpu import launched
from tiers import sampled

from tl_attention.lab.measure import gpu_worker, timing
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.cell import Cell
from tl_attention.lab.measure.cells import measure
from tl_attention.lab.measure.trials import SILENT
from tl_attention.lab.oracle.reference import attention_same_precision, lse_same_precision
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned

SHAPE = AttentionShape(2, 6, 300, 420, 64, "bfloat16", heads_kv=3)
ALL = replace(SHAPE, mask=CAUSAL).asking(softcap=3.0, sinks=True, lse=True)
Kernel = Callable[..., None]


def attention(shape: AttentionShape) -> Kernel:
    """Makes a kernel that is right."""

    def kernel(*, Q, K, V, Output, softmax_scale, group, LSE=None, softcap=0.0, Sinks=None, **window) -> None:
        assert window == shape.mask.values(tuple(window)) and group == shape.group
        options = {"mask": shape.mask, "scale": softmax_scale, "softcap": softcap, "sinks": Sinks}
        Output.copy_(attention_same_precision(Q, K, V, **options))
        if LSE is not None:
            LSE.copy_(lse_same_precision(Q, K, **options))

    return kernel


@pytest.fixture
def candidate(monkeypatch) -> Callable[[AttentionShape, Kernel], Candidate]:
    """Gives a function that makes a candidate with a given kernel, on the CPU."""
    monkeypatch.setattr(gpu_worker, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def of(shape: AttentionShape, kernel: Kernel) -> Candidate:
        gpu_worker.unload()
        monkeypatch.setattr(gpu_worker, "_kernel", lambda schedule, variant: launched(schedule, variant, kernel))
        return Candidate("seed", shape, Planned(shipped()["seed"]))

    yield of
    gpu_worker.unload()


@pytest.mark.parametrize(
    "shape",
    [SHAPE, ALL, replace(SHAPE, mask=Mask(100, 30)), replace(SHAPE, mask=Mask(100, None)).asking(lse=True)],
    ids=str,
)
def test_a_right_kernel_is_right_in_all_rows_and_in_some(shape, candidate) -> None:
    right = candidate(shape, attention(shape))
    report, stable = gpu_worker.verify(right, shape, 1.0, seed=1)
    assert report.ok and stable and 0 < report.part <= 0.5 + 1e-6
    assert gpu_worker.verify_some_rows(right, seed=1).ok


def test_where_tensors_are_strided_the_heads_of_a_row_lie_together(candidate) -> None:
    def kernel(**given) -> None:
        assert all(given[name].transpose(1, 2).is_contiguous() for name in ("Q", "K", "V", "Output"))
        attention(ALL)(**given)

    right = replace(candidate(ALL, kernel), strided=True)
    report, stable = gpu_worker.verify(right, ALL, 1.0, seed=1)
    assert report.ok and stable and gpu_worker.verify_some_rows(right, seed=1).ok


def changed(change: Callable[..., None]) -> Kernel:
    def kernel(**given) -> None:
        attention(ALL)(**given)
        change(given)

    return kernel


FAULTS: dict[str, Callable[[dict], object]] = {
    "no softcap": lambda given: attention(ALL)(**given | {"softcap": 0.0}),
    "no sinks": lambda given: attention(ALL)(**given | {"Sinks": None}),
    "a mask that ends a key later": lambda given: attention(replace(ALL, mask=Mask(right=1)))(**given),
    "another head's keys": lambda given: attention(ALL)(**given | {"K": given["K"].roll(1, dims=1)}),
    "another head's sink": lambda given: attention(ALL)(**given | {"Sinks": given["Sinks"].roll(1)}),
    "an LSE of base 2": lambda given: given["LSE"].mul_(1.4427),
    "no LSE": lambda given: given["LSE"].fill_(float("nan")),
    "rows not written": lambda given: given["Output"][1, 2, 16:32].fill_(float("nan")),
    "the last head": lambda given: given["Output"][1, 5, -20:].mul_(1.1),
    "the first head": lambda given: given["Output"][0, 0, -20:].add_(0.05),
}


@pytest.mark.parametrize("name", sampled(FAULTS, [*FAULTS][::2]))
def test_a_fault_shows_in_all_rows_and_in_some(name, candidate) -> None:
    wrong = candidate(ALL, changed(FAULTS[name]))
    assert not gpu_worker.verify(wrong, ALL, 1.0, seed=1)[0].ok
    assert not gpu_worker.verify_some_rows(wrong, seed=1).ok


def test_an_output_or_an_lse_that_changes_is_not_stable(candidate) -> None:
    for name in ("Output", "LSE"):
        calls = iter(range(9))
        moving = candidate(
            ALL, changed(lambda given, name=name, calls=calls: given[name][0, 0, 0].mul_(1 + next(calls) * 1e-2))
        )
        report, stable = gpu_worker.verify(moving, ALL, 1.0, seed=1)
        assert report.ok and not stable


def test_a_peer_that_does_not_take_the_problem_says_why(candidate, monkeypatch) -> None:
    def refuses(*arguments) -> Callable[[], None]:
        def call() -> None:
            raise RuntimeError("No available kernel. Aborting execution.\nmore")

        return call

    candidate(SHAPE, attention(SHAPE))
    monkeypatch.setattr(gpu_worker.peers, "build", refuses)
    assert gpu_worker.verify_some_rows(Candidate("cudnn", SHAPE), 1) == "No available kernel. Aborting execution."
    assert "softcap" in gpu_worker.verify_some_rows(Candidate("cudnn", SHAPE.asking(softcap=3.0)), 1)
    assert "without fp16" in gpu_worker.verify_some_rows(Candidate("fa3", replace(SHAPE, dtype="float16")), 1)
    assert "no head_dim 104" in gpu_worker.verify_some_rows(
        Candidate("fa3", replace(SHAPE, head_dim=104, head_dim_v=104)), 1
    )
    with pytest.raises(RuntimeError):
        gpu_worker.verify_some_rows(candidate(SHAPE, lambda **given: refuses()()), 1)


@pytest.mark.gpu
def test_two_small_cells_on_a_gpu() -> None:
    small = replace(SHAPE, heads=4, heads_kv=4, seq_q=512, seq_kv=512, head_dim=128, head_dim_v=128)
    capped = small.asking(softcap=20.0, sinks=True, lse=True)
    some = [Cell("small", small, {"cudnn": 0.01}), Cell("capped", capped, {"without_lse": 0.5, "cudnn": 0.5})]
    rows = {row.group: row for row in measure(some, lambda row: None, SILENT, rounds=6)}
    assert rows["small"].verdicts() == {"cudnn": "met"} and rows["small"].repeatability < 0.2
    ours = rows["small"].ours
    # 1.07e9 FLOP: faster than the peak, or slower than a hundredth of it, would be a mistake of the timing.
    assert 10 < ours.tflops < 989 and ours.calls > timing.LEAST_CALLS and ours.error < 1
    assert rows["capped"].verdicts() == {"without_lse": "met", "cudnn": "not measured"}
    assert rows["capped"].entry("cudnn").status == "refused"
