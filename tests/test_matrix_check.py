"""The check of a matrix case accepts what is right, and finds each kind of fault."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import gpu_lost
import matrix_check
import pytest
import torch
from matrix_cases import REPEATED, Case
from matrix_check import drawn, fault_of, faults
from matrix_kernels import kernels
from on_cpu import Fault, Kernels, memory_of, on_cpu

__all__ = ["on_cpu"]
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


def one_element(tensors: dict[str, Any]) -> None:
    tensors["Output"][1, 3, 20, 5] += 0.02


def one_row_of_another_head(tensors: dict[str, Any]) -> None:
    tensors["Output"][0, 2, 11] = tensors["Output"][0, 3, 11]


def nan(tensors: dict[str, Any]) -> None:
    tensors["Output"][0, 0, 7, 3] = float("nan")


def beside_a_row(tensors: dict[str, Any]) -> None:
    # One bit, of the number before a row of the output.
    output = tensors["Output"]
    memory_of(output).view(torch.int16)[output[1, 0, 4].storage_offset() - 1] ^= 1


def behind_all(tensors: dict[str, Any]) -> None:
    memory_of(tensors["Output"])[-1] = 0


def a_key(tensors: dict[str, Any]) -> None:
    tensors["K"][0, 1, 3, 2] = 0


def around_the_keys(tensors: dict[str, Any]) -> None:
    memory_of(tensors["K"])[0] = 0


def off_by_1e_2(tensors: dict[str, Any]) -> None:
    tensors["LSE"][0, 1, 9] += 1e-2


def all_off_by_2e_3(tensors: dict[str, Any]) -> None:
    tensors["LSE"] += 2e-3


def nan_in_the_lse(tensors: dict[str, Any]) -> None:
    tensors["LSE"][1, 5, 28] = float("nan")


def infinite(tensors: dict[str, Any]) -> None:
    tensors["LSE"][1, 5, 28] = -float("inf")


FAULTS: dict[Fault, str] = {
    one_element: "output: rms",
    one_row_of_another_head: "output: rms",
    nan: "output: the output holds NaN",
    beside_a_row: "written beyond out",
    behind_all: "written beyond out",
    a_key: "an input was changed",
    around_the_keys: "an input was changed",
    off_by_1e_2: "LSE: rms",
    all_off_by_2e_3: "LSE: rms",
    nan_in_the_lse: "LSE: the output holds NaN",
    infinite: "LSE: the output holds NaN",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_found(on_cpu: Kernels, fault: Fault) -> None:
    on_cpu.fault = fault
    assert [line.startswith(FAULTS[fault]) for line in found(CASE)] == [True]


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
    on_cpu.fault = one_element
    assert "output: rms" in fault_of(CASE, schedule)
