"""The matrix test's list has what it must have; the check of a case accepts what is right and finds each fault."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import gpu_lost
import matrix_check
import pytest
import torch
from matrix_cases import REPEATED, Case, cases
from matrix_check import drawn, fault_of, faults, places
from matrix_kernels import kernels
from on_cpu import Fault, Kernels, memory_of, on_cpu
from tiers import exhaustive

from tl_attention import InputError, attention
from tl_attention.op import checks
from tl_attention.op.in_memory import as_bhsd

__all__ = ["on_cpu"]


# At 20 s of a core each, on 15 cores, two and a half minutes.
MOST_KERNELS = 110
LEAST_CASES = 3000


@exhaustive
def test_there_are_enough_cases_of_few_enough_kernels() -> None:
    every = [case for of_kernel in cases().values() for case in of_kernel]
    assert len(every) == len(set(every))
    assert sum(case.launches and not case.is_refused for case in every) >= LEAST_CASES
    assert any(case.is_refused for case in every) and any(not case.launches for case in every)
    assert min(map(len, cases().values())) >= 10
    # Two of these may be one kernel, whose launches say how many heads share K and V, and how wide a window is.
    assert len(set(map(str, kernels()))) == len(kernels()) <= MOST_KERNELS


def call_on_meta(case: Case, schedule: Any) -> None:
    """Calls attention() on tensors that have no memory."""
    like = torch.empty(0, dtype=getattr(torch, case.dtype), device="meta")
    read, out = places(case, like)
    sinks = torch.empty(case.heads, device="meta") if case.sinks else None
    attention(
        *(as_bhsd(place.tensor, case.layout) for place in read),
        causal=case.causal,
        window_size=case.window,
        softcap=case.cap[0],
        sinks=sinks,
        layout=case.layout,
        return_lse=case.lse,
        out=as_bhsd(out.tensor, case.layout) if out else None,
        schedule=schedule,
    )


@exhaustive
def test_each_case_asks_for_the_kernel_that_it_stands_with(on_cpu: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu, "compute", lambda tensors, variant: None)
    # All tensors without memory lie at one address.
    monkeypatch.setattr(checks, "check_out", lambda *of_out: None)
    for kernel, of_kernel in cases().items():
        on_cpu.asked.clear()
        for case in of_kernel:
            if case.is_refused:
                with pytest.raises(InputError, match="strides"):
                    call_on_meta(case, kernel.scheduled)
            else:
                call_on_meta(case, kernel.scheduled)
        assert on_cpu.asked == {(kernel.scheduled, kernel.variant)}, str(kernel)


def test_small_cases_of_some_kernels_are_right_with_the_reference_in_their_place(on_cpu: Kernels) -> None:
    for kernel, of_kernel in [*cases().items()][::11]:
        small = sorted(of_kernel, key=lambda case: case.batch * case.heads * (case.seq_q + 1) * (case.seq_kv + 1))
        first = next(case for case in small if case.launches and not case.is_refused)
        for case in {small[0]: None, first: None}:
            assert list(faults(case, 5, "cpu")) == [], f"{kernel} {case}"


CASE = Case(
    dtype="float16",
    head_dim=40,
    head_dim_v=24,
    batch=2,
    heads=6,
    heads_kv=2,
    seq_q=33,
    seq_kv=29,
    causal=True,
    window=(20, -1),
    cap=(15.0, 3.75),
    sinks=False,
    lse=True,
    scale=0.1,
    layout="bshd",
    memory="packed",
    out="sliced",
)
WITHOUT_OUT = replace(CASE, memory="transposed", out="none")


def found(case: Case) -> list[str]:
    return list(faults(case, 3, "cpu"))


@pytest.mark.parametrize(
    "case",
    [
        CASE,
        WITHOUT_OUT,
        replace(CASE, sinks=True),
        replace(CASE, layout="bhsd", memory="sliced"),
        replace(CASE, seq_q=0),
        replace(CASE, seq_kv=0),
        replace(CASE, seq_kv=0, memory=REPEATED),
        replace(CASE, seq_q=2000, seq_kv=1),
        replace(CASE, memory=REPEATED),
        replace(CASE, batch=1, seq_q=1, seq_kv=1),
    ],
    ids=str,
)
def test_what_is_right_has_no_fault(on_cpu: Kernels, case: Case) -> None:
    assert found(case) == []


def before_a_row(output: torch.Tensor) -> torch.Tensor:
    """Returns the bits of the number in memory before a row of the output."""
    place = output[1, 0, 4].storage_offset() - 1
    return memory_of(output).view(torch.int16)[place : place + 1]


# What a kernel does to its tensors, and what is said of it.
FAULTS: dict[str, tuple[Fault, str]] = {
    "one element": (lambda given: given["Output"][1, 3, 20, 5].add_(0.02), "output: rms"),
    "a row of another head": (lambda given: given["Output"][0, 2, 11].copy_(given["Output"][0, 3, 11]), "output: rms"),
    "NaN": (lambda given: given["Output"][0, 0, 7, 3].fill_(math.nan), "output: the output holds NaN"),
    "beside a row": (lambda given: before_a_row(given["Output"]).bitwise_xor_(1), "written beyond out"),
    "behind all": (lambda given: memory_of(given["Output"])[-1:].zero_(), "written beyond out"),
    "a key": (lambda given: given["K"][0, 1, 3, 2].zero_(), "an input was changed"),
    "around the keys": (lambda given: memory_of(given["K"])[:1].zero_(), "an input was changed"),
    "an LSE off by 1e-2": (lambda given: given["LSE"][0, 1, 9].add_(1e-2), "LSE: rms"),
    "every LSE off by 2e-3": (lambda given: given["LSE"].add_(2e-3), "LSE: rms"),
    "NaN in the LSE": (lambda given: given["LSE"][1, 5, 28].fill_(math.nan), "LSE: the output holds NaN"),
    "an infinite LSE": (lambda given: given["LSE"][1, 5, 28].fill_(-math.inf), "LSE: the output holds NaN"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(on_cpu: Kernels, name: str) -> None:
    on_cpu.fault, words = FAULTS[name]
    assert [line.startswith(words) for line in found(CASE)] == [True]


def test_rows_that_see_no_key_are_zero_and_a_call_answers_as_asked(on_cpu: Kernels, monkeypatch) -> None:
    from tl_attention import attention

    def spoiled(change):
        def call(*tensors, **options):
            output, lse = attention(*tensors, **options)
            return change(output, lse)

        return list(faults(CASE, 3, "cpu", call))

    def in_a_hidden_row(output, lse):
        output[0, 1, 2, 3] = 1e-4
        return output, lse

    # 33 causal queries on 29 keys: the first four see none.
    assert spoiled(in_a_hidden_row)[0] == "a row that sees no key is not 0"
    assert spoiled(lambda output, lse: (output.clone(), lse))[0] == "the output is not out"
    assert spoiled(lambda output, lse: (output.float(), lse))[0].startswith(
        "the output is (2, 33, 6, 24) torch.float32"
    )
    assert spoiled(lambda output, lse: (output, lse.double()))[0].startswith("the LSE is (2, 6, 33) torch.float64")


def test_what_must_be_refused_must_be(on_cpu: Kernels) -> None:
    case = replace(CASE, memory=REPEATED)
    assert list(faults(case, 3, "cpu", lambda *tensors, **options: None)) == ["a stride of 0 is not refused"]
    assert next(iter(faults(replace(CASE, heads_kv=4), 3, "cpu"))).startswith("refused: attention: q has 6 heads")


class Event:
    """This event is of a stream on which nothing ends, or whose context has failed."""

    fails = False

    def record(self) -> None:
        pass

    def query(self) -> bool:
        if self.fails:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        return False


@pytest.mark.parametrize("fails, words", [(False, "it ran for more than 0 s"), (True, "CUDA error: an illegal memory")])
def test_a_kernel_that_hangs_or_fails_ends_the_process(on_cpu: Kernels, monkeypatch, fails: bool, words: str) -> None:
    class Left(BaseException):
        pass

    def leave(line: str) -> None:
        raise Left(line)

    schedule = kernels()[0].scheduled
    monkeypatch.setattr(Event, "fails", fails)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(gpu_lost, "wait", partial(gpu_lost.wait, 0.0))
    monkeypatch.setattr(gpu_lost, "leave", leave)
    monkeypatch.setattr(matrix_check, "drawn", lambda case, seed, device: drawn(case, seed, "cpu"))
    with pytest.raises(Left, match=f"seed .* Case.*{words}"):
        fault_of(CASE, schedule)
    monkeypatch.setattr(gpu_lost, "wait", lambda: None)
    assert fault_of(CASE, schedule) == ""
    on_cpu.fault = FAULTS["one element"][0]
    assert "output: rms" in fault_of(CASE, schedule)
