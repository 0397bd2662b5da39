"""Tests check what kernels that read strides are passed, and what a proof distinguishes. Faults: tests/faults/strides.py."""

from dataclasses import replace

import pytest
from code_mutants.reading import prove
from golden_kernels import KERNELS
from once import lowered

from tl_attention.errors import ScheduleRefused
from tl_attention.proof.code.host_plan import parse_host_source
from tl_attention.proof.code.tensors import Tensor, contiguous, told_apart


def test_strides_have_64_bits_from_the_caller_to_the_kernel():
    for name in ("best", "seed"):
        code = lowered(KERNELS[f"{name}, asked"])
        plan = parse_host_source(code.host_source)
        assert {(s.name, s.tensor, s.axis) for s in plan.strides} == {
            (f"{tensor}_{dim}_stride", tensor, axis)
            for tensor in ("Q", "K", "V", "Output")
            for axis, dim in enumerate(("batch", "head", "row"))
        }
        taken = {p.name: p.kind for p in plan.parameters if p.name.endswith("_stride")}
        assert set(taken.values()) == {"int64_t"}
        # What addresses are made of; TMA descriptors have the others.
        tensors = {name.partition("_")[0] for name in taken}
        assert tensors == ({"Output"} if name == "best" else {"Q", "K", "V", "Output"})
        assert "(int)Q_" not in code.source and "((int)Output_" not in code.source


def test_copies_of_strided_rows_take_16_bytes():
    code = lowered(KERNELS["seed, asked"])
    assert "tl::cp_async_gs_conditional<16>" in code.source and "= *(uint4*)(Q + " in code.source
    # For which the host's code holds the strides to multiples of 16 bytes.
    for tensor in "QKV":
        assert f"if (!((({tensor}_row_stride % (int64_t)8) == (int64_t)0)))" in code.host_source


def test_the_strides_of_a_proof_tell_all_dimensions_apart():
    shape = (2, 3, 50, 64)
    found = [told_apart(number, shape) for number in range(4)]
    every = [stride for strides in found for stride in strides[:3]]
    assert len({*every}) == len(every) and all(stride % 8 == 0 for stride in every)
    orders = {tuple(sorted(range(3), key=lambda dim: strides[dim])) for strides in found}
    assert len(orders) == 4 and (2, 1, 0) not in orders
    for strides in (*found, contiguous(shape)):
        tensor = Tensor(shape, strides)
        for place in ((0, 0, 0), (1, 2, 49), (1, 0, 7)):
            assert tensor.split(tensor.element(*place) + 5) == (*place, 5)
            for rows in (50, 1, 0, -3):
                first = tensor.element(*place[:2], 50 - rows)
                assert tensor.bounded(first, rows) == (*place[:2], 50 - rows, 0)


def test_a_contiguous_kernel_is_not_taken_for_a_strided_one():
    for name in ("best", "seed"):
        asked = KERNELS[f"{name}, asked"]
        for kernel, strided in ((KERNELS[name], True), (asked, False)):
            code = lowered(kernel)
            with pytest.raises(ScheduleRefused):
                prove(kernel.schedule, replace(code, variant=replace(code.variant, strided=strided)))
