"""attention_varlen checks its calls, and its tests find what is wrong, on the CPU with stand-ins for its kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from on_cpu import Kernels, on_cpu
from packed_cases import RAGGED, PackedCase, few, matrix, mixed, ragged
from packed_check import faults
from tiers import sampled
from torch import Tensor

from tl_attention import InputError, ScheduleRefused, attention, attention_varlen
from tl_attention.kernels.registry import lowering_of
from tl_attention.op import run
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.named import resolve

__all__ = ["on_cpu"]


def half(*size: int) -> Tensor:
    return torch.randn(*size, dtype=torch.float16)


def offsets(*found: int) -> Tensor:
    return torch.tensor(found, dtype=torch.int32)


def call_of(**changed: Any) -> dict[str, Any]:
    """Returns the arguments of a call of three sequences, one of them empty, with some changed."""
    q, k, v = half(12, 4, 64), half(20, 2, 64), half(20, 2, 72)
    cu_q, cu_k = offsets(0, 5, 5, 11), offsets(0, 9, 12, 18)
    named = {"q": q, "k": k, "v": v, "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 6, "max_seqlen_k": 9}
    return named | changed


# --- numbers -------------------------------------------------------------------------------------------------------


def small(case: PackedCase) -> bool:
    return sum(case.lengths_q) < 500 and sum(case.lengths_k) < 500


@pytest.mark.parametrize("kernel", RAGGED, ids=str)
def test_ragged_batches(kernel, on_cpu: Kernels) -> None:
    for seed, case in enumerate([case for case in ragged(kernel, 30) if small(case)][:6]):
        assert not [*faults(case, seed, "cpu")]


@pytest.mark.parametrize("kernel", RAGGED, ids=str)
def test_few_queries_in_parts(kernel, on_cpu: Kernels) -> None:
    for seed, case in enumerate(few(kernel, 3, most=600)):
        assert not [*faults(case, seed, "cpu")]
    assert any(variant.parts for _, variant in on_cpu.asked)


@pytest.mark.parametrize("kernel", sampled(RAGGED, RAGGED[::5]), ids=str)
def test_few_queries_beside_prompts(kernel, on_cpu: Kernels) -> None:
    for seed, case in enumerate(mixed(kernel, 5, most=700)):
        assert not [*faults(case, seed, "cpu")]
    assert any(variant.parts for _, variant in on_cpu.asked)


def test_the_matrix_has_all_kinds_of_calls(on_cpu: Kernels) -> None:
    kernels = matrix()
    assert sum(map(len, kernels.values())) == 22 * 3 * 6 * 2 * 4 * 2
    for seed, (kernel, cases) in enumerate([*kernels.items()][::40]):
        assert not [*faults(cases[seed % 3], seed, "cpu")], kernel


def _nan(tensors: dict[str, Any]) -> None:
    tensors["Output"][0, 0, 0] = torch.nan


def _off(tensors: dict[str, Any]) -> None:
    tensors["Output"][0] += 0.1


def _lse(tensors: dict[str, Any]) -> None:
    tensors["LSE"][0, 0] += 0.01


def _behind(tensors: dict[str, Any]) -> None:
    tensors["Output"][-1] = 1.0


@pytest.mark.parametrize("fault, said", [(_nan, "off"), (_off, "off"), (_lse, "LSE"), (_behind, "were written")])
def test_the_check_finds_faults(fault, said, on_cpu: Kernels) -> None:
    on_cpu.fault = fault
    case = PackedCase(RAGGED[1], (-1, -1), (5, 9), (7, 9), None, None, (0.0, 1.0), lse=True, out=True, behind=2)
    assert said in "; ".join(faults(case, 3, "cpu"))


def test_equal_lengths_are_a_batch(on_cpu: Kernels) -> None:
    q, k, v = half(3, 7, 4, 64), half(3, 7, 2, 64), half(3, 7, 2, 64)
    cu = offsets(0, 7, 14, 21)
    found, lse = attention_varlen(*(x.flatten(0, 1) for x in (q, k, v)), cu, cu, 7, 7, causal=True, return_lse=True)
    wanted, wanted_lse = attention(q, k, v, causal=True, return_lse=True, layout="bshd")
    assert torch.equal(found.unflatten(0, (3, 7)), wanted)
    assert torch.equal(lse.unflatten(1, (3, 7)).transpose(0, 1), wanted_lse)


@pytest.mark.parametrize("changed", [{"q": half(0, 4, 64)}, {"cu_seqlens_q": offsets(0), "cu_seqlens_k": offsets(0)}])
def test_nothing_to_compute_launches_nothing(changed, on_cpu: Kernels) -> None:
    given = call_of(**changed)
    result, lse = attention_varlen(**given, return_lse=True, zero_unused=True)
    assert not result.any() and (lse == -torch.inf).all() and not on_cpu.asked
    assert tuple(result.shape) == (given["q"].shape[0], 4, 72)


def test_no_keys_at_all_give_zeros(on_cpu: Kernels) -> None:
    none = {"k": half(0, 2, 64), "v": half(0, 2, 72), "cu_seqlens_k": offsets(0, 0, 0, 0)}
    result, lse = attention_varlen(**call_of(**none), return_lse=True)
    assert not result[:11].any() and (lse[:, :11] == -torch.inf).all()


# --- kernels and plans ---------------------------------------------------------------------------------------------


def test_one_kernel_serves_all_totals_batches_and_maxima(on_cpu: Kernels) -> None:
    for total, cu in ((12, (0, 5, 5, 11)), (100, (0, 70, 100)), (7, (0, 1, 2, 3, 4, 5, 6, 7)), (1, (0, 1))):
        q, k = half(total, 4, 64), half(total, 2, 64)
        for most in (total, 1000):
            attention_varlen(q, k, k, offsets(*cu), offsets(*cu), max(most, 65), most, causal=True)
    assert len(on_cpu.asked) == 1
    assert {variant.packed for _, variant in on_cpu.asked} == {True}


def test_a_plan_is_not_taken_for_another_call(on_cpu: Kernels) -> None:
    attention_varlen(**call_of())
    with pytest.raises(InputError, match="cu_seqlens_k has 3 numbers, expected 4"):
        attention_varlen(**call_of(cu_seqlens_k=offsets(0, 9, 18)))
    with pytest.raises(InputError, match="do not match"):
        attention_varlen(**call_of(v=half(19, 2, 72)))
    with pytest.raises(InputError, match="seqused_q has 2 numbers, expected 3"):
        attention_varlen(**call_of(seqused_q=offsets(1, 1)))


# --- bad input -----------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[dict[str, Any], str]] = {
    "q has a batch": ({"q": half(1, 12, 4, 64)}, r"q is \(1, 12, 4, 64\), expected a tensor \(total, heads, head_dim\)"),
    "no tensor": ({"k": 3}, "k is int, expected a tensor"),
    "dtype of v": ({"v": torch.zeros(20, 2, 72)}, "v is torch.float32 on cpu, expected q's torch.float16"),
    "heads": ({"k": half(20, 3, 64), "v": half(20, 3, 64)}, "q has 4 heads, expected a multiple of the 3"),
    "head_dim": ({"v": half(20, 2, 70)}, "head_dim"),
    "offsets of 64 bits": ({"cu_seqlens_q": offsets(0, 11).long()}, "cu_seqlens_q is torch.int64"),
    "offsets in a list": ({"cu_seqlens_k": [0, 18]}, "cu_seqlens_k is list, expected contiguous torch.int32"),
    "offsets with two dimensions": ({"cu_seqlens_q": offsets(0, 11)[None]}, r"cu_seqlens_q is torch.int32 \(1, 2\)"),
    "offsets with gaps": ({"cu_seqlens_q": offsets(*range(8))[::2]}, "cu_seqlens_q is not contiguous"),
    "no offsets": ({"cu_seqlens_q": offsets()}, "cu_seqlens_q has 0 offsets"),
    "fewer offsets": ({"cu_seqlens_k": offsets(0, 18)}, "cu_seqlens_k has 2 numbers, expected 4"),
    "used": ({"seqused_k": offsets(1, 2)}, "seqused_k has 2 numbers, expected 3"),
    "longest": ({"max_seqlen_q": 6.5}, "max_seqlen_q is 6.5, expected an integer of at least 0"),
    "longest on the GPU": (
        {"max_seqlen_k": torch.empty((), dtype=torch.int32, device="meta")},
        r"^attention_varlen: max_seqlen_k is a tensor \(\) on meta, expected an integer of at least 0: pass max_seqlen_k.item\(\)$",
    ),
    "several longest": ({"max_seqlen_k": offsets(9, 8)}, r"max_seqlen_k is a tensor \(2,\) on cpu, .* at least 0$"),
    "longest is a NumPy float": ({"max_seqlen_q": np.float32(6)}, "max_seqlen_q is 6.0, expected an integer"),
    "longest is a tensor of a bool": ({"max_seqlen_q": torch.tensor(True)}, "max_seqlen_q is True, expected an integer"),
    "no flag": ({"check": torch.ones(2)}, "check is tensor.*, expected True or False"),
    "a flag": ({"zero_unused": 1}, "zero_unused is 1, expected True or False"),
    "window": ({"window_size": (1,)}, "window_size"),
    "sinks": ({"sinks": torch.zeros(3)}, r"sinks is contiguous \(3,\)"),
    "out is a number": ({"out": 1}, r"^attention_varlen: out is int, expected a tensor \(total, heads, head_dim\)$"),
    "out": ({"out": half(12, 4, 64)}, r"out is \(12, 4, 64\)"),
    "stride": ({"q": half(12, 64, 4).transpose(1, 2)}, r"q has strides \(256, 1, 4\), expected 1 for the last"),
    "address": ({"q": half(12 * 4 * 64 + 1)[1:].view(12, 4, 64)}, "q starts 2 bytes after a multiple of 16"),
    "unknown": ({"cu_seqlens": 3}, "no argument is named cu_seqlens"),
    "falls": ({"cu_seqlens_q": offsets(0, 7, 5, 11), "check": True}, "cu_seqlens_q falls from 7 to 5 at sequence 1"),
    "too long": ({"cu_seqlens_k": offsets(0, 9, 12, 21), "check": True}, "cu_seqlens_k goes from 0 to 21, expected 0 to at most"),
    "longer than the longest": ({"max_seqlen_k": 8, "check": True}, "sequence 0 has 9 rows of k, expected at most max_seqlen_k, 8"),
    "used too many": ({"seqused_q": offsets(5, 1, 6), "check": True}, "seqused_q has 1 for sequence 1, expected 0 to its 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_line(name, on_cpu: Kernels) -> None:
    changed, said = BAD[name]
    with pytest.raises(InputError, match=said) as refusal:
        attention_varlen(**call_of(**changed))
    assert "\n" not in str(refusal.value)


def test_a_keyword_without_its_name_gets_one_line() -> None:
    given = call_of()
    with pytest.raises(TypeError) as refusal:
        attention_varlen(*given.values(), 0.0)
    assert isinstance(refusal.value, InputError) and str(refusal.value) == (
        "attention_varlen: 0.0 is given behind max_seqlen_k without a name, expected a keyword such as causal=True"
    )


def test_the_longest_may_be_numpys_or_a_tensor_on_the_cpu(on_cpu: Kernels) -> None:
    given = call_of(causal=True)
    expected = attention_varlen(**given)[:11]
    for most in (np.int64, np.int32, np.array, torch.tensor):
        longest = {name: most(given[name]) for name in ("max_seqlen_q", "max_seqlen_k")}
        assert torch.equal(attention_varlen(**given | longest)[:11], expected)
    assert len(run.plans) == 1


def test_a_plan_serves_no_lengths_for_which_the_rules_choose_otherwise(on_cpu: Kernels) -> None:
    """Eight heads share K and V, so that 9 queries have the rows from which another schedule is chosen."""
    chosen = []
    for queries in (5, 9, 5):
        on_cpu.asked.clear()
        cu = offsets(0, queries, 2 * queries), offsets(0, 300, 600)
        attention_varlen(half(2 * queries, 8, 128), half(600, 1, 128), half(600, 1, 128), *cu, queries, 300)
        chosen.append({schedule.label for schedule, _ in on_cpu.asked})
    assert chosen[0] and chosen[1] and chosen[0] != chosen[1] and not chosen[2]


def test_right_offsets_pass_the_check(on_cpu: Kernels) -> None:
    given = call_of()
    assert torch.equal(attention_varlen(**given, check=True)[:11], attention_varlen(**given)[:11])


@pytest.mark.parametrize("name", ["seed", "mma_sync", "experiments/one_tile"])
def test_other_kernels_are_refused(name) -> None:
    schedule, variant = resolve(name).schedule, Variant(128, "float16", packed=True)
    with pytest.raises(ScheduleRefused, match="packed sequences, which lowering"):
        lowering_of(schedule).check_variant(schedule, variant)
