"""A kernel's launch is read off the host code that TileLang generates, and unknown host code is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from once import Given, lowered

from tl_attention.errors import InputError
from tl_attention.files.schedule_file import load
from tl_attention.problem.variant import Variant
from tl_attention.proof.code.host_plan import HostPlan, parse_host_source
from tl_attention.schedule.schedule import Schedule

INFERRED = Schedule(lowering="inferred", block_M=128, block_N=128, threads=256, num_stages=2)
SCHEDULES = {"seed": load(Path(__file__).parents[1] / "schedules" / "seed.yaml"), "inferred": INFERRED}
SIZES = {"batch": 2, "heads": 3, "seq_q": 200, "seq_kv": 300}


@pytest.fixture(scope="module")
def host_sources() -> dict[str, str]:
    return {name: lowered(Given(schedule, Variant(128, "float16"))).host_source for name, schedule in SCHEDULES.items()}


@pytest.fixture(scope="module")
def plans(host_sources: dict[str, str]) -> dict[str, HostPlan]:
    return {name: parse_host_source(source) for name, source in host_sources.items()}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_plan_is_the_launch(plans, name):
    plan = plans[name]
    assert plan.kernel == "attention_kernel"
    assert [extent.at(SIZES) for extent in plan.grid] == [2, 3, 2]
    assert plan.block == ({"seed": 256, "inferred": 384}[name], 1, 1)
    # Q once, K and V twice: 5 tiles of 128 x 128 in fp16.
    assert plan.shared_bytes == 5 * 128 * 128 * 2
    assert {size.name: (size.tensor, size.axis) for size in plan.sizes} == {
        "batch": ("Q", 0), "heads": ("Q", 1), "seq_q": ("Q", 2), "seq_kv": ("K", 2),
    }  # fmt: skip
    assert {p.name for p in plan.parameters if p.kind == "int"} == set(SIZES)
    assert [p.name for p in plan.parameters if p.kind == "float"] == ["softmax_scale"]


@pytest.mark.parametrize(
    "name, tensors", [("seed", ("Output",)), ("inferred", ("K", "Output", "Q", "V"))], ids=["seed", "inferred"]
)
def test_the_descriptors_cover_their_tensors(plans, name, tensors):
    descriptors = {descriptor.tensor: descriptor for descriptor in plans[name].descriptors}
    assert tuple(sorted(descriptors)) == tensors
    for tensor, descriptor in descriptors.items():
        rows = 300 if tensor in "KV" else 200
        assert [extent.at(SIZES) for extent in descriptor.dims] == [128, rows, 3, 2]
        assert [extent.at(SIZES) for extent in descriptor.strides] == [256, rows * 256, 3 * rows * 256]
        # 64 fp16 fill the 128 bytes of the swizzle (3); rows come 128 at a time.
        assert (descriptor.dtype, descriptor.box, descriptor.swizzle) == (6, (64, 128, 1, 1), 3)
        assert descriptor.name in {p.name for p in plans[name].parameters if p.kind == "pointer"}


@pytest.mark.parametrize(
    "old, new, message",
    [
        ("((int64_t)((seq_q + 127) >> 7))", "((int64_t)((seq_k + 127) >> 7))", "seq_k in .* expected one of the sizes"),
        ("((int64_t)((seq_q + 127) >> 7))", "((int64_t)(seq_q - 1))", "Sub in the expression"),
        ("((int64_t)((seq_q + 127) >> 7))", "((int64_t)(seq_q > 0 ? 1 : 2))", "the expression"),
        ("  (((TVMFFIAny*)stack_ffi_any)[15].v_int64)", "    (((TVMFFIAny*)stack_ffi_any)[15].v_int64)", "argument 15"),
        ("((TVMFFIAny*)stack_ffi_any)[8].v_float64", "((TVMFFIAny*)stack_ffi_any)[8].v_bool", "argument 8 of"),
        ("(TVMFFIAny*) stack_ffi_any, 16", "(TVMFFIAny*) other, 16", "argument 16 of a call, or the call, from line"),
        ("stack_ffi_any, 16,", "stack_ffi_any, 40,", "argument 16 of a call, or the call, from line"),
        ("stack_1[16]", "stack_1[8]", r"argument 0 of a call, or the call, from line .*stack_1\[8\]"),
        ("[16].type_index", "[17].type_index", "argument 16 of"),
        ("stack[25]", "stack[24]", "an argument stack of 24 slots, expected 25"),
        ("attention_kernel", "__tvm_other", "no kernel launch after the call of __tvm_other"),
        ("__tvm_tensormap_create_tiled", "__tvm_other", "expected __tvm_set_device, any __tvm_tensormap_create_tiled"),
        ("__tvm_set_device", "__tvm_other", "expected __tvm_set_device, any __tvm_tensormap_create_tiled and one"),
        ("__tvm_tensormap_create_tiled", "__tvm_tensormap_create_im2col", "im2col TMA descriptors are not supported"),
        ("__tvm_tensormap_create_tiled", "first_kernel", "calls of __tvm_set_device, first_kernel, attention_kernel,"),
        ("((int64_t)dev_id)", "((int64_t)0)", "__tvm_set_device of "),
        ("result_2", "result_7", "not numbered as of call 2"),
        ("stack_1", "stack_7", "not numbered as of call 2"),
        ("((double)softmax_scale)", "((double)seq_q)", "seq_q.*, expected one of softmax_scale"),
        ("  void* Output_desc = stack_1;\n", "", "argument 0 of a call, or the call, from line .* stack_1"),
        ("((int64_t)2);\n  (((TVMFFIAny*)stack_ffi_any)[9]", "((int64_t)4);\n  (((TVMFFIAny*)stack_ffi_any)[9]",
         "4.* bytes apart, expected 2"),
        (" void* K = (((DLTensor*)K_handle)", " void* K = (((DLTensor*)V_handle)", r"no definition 'void\* K = "),
        ("  int32_t seq_q = ", "  int32_t heads = ", "a second definition of heads"),
        ("  int32_t seq_q = ", "  int32_t seq_q = 2 * ", "the definition 'int32_t seq_q = 2"),
        ("dev_id = (((DLTensor*)Q_handle)", "dev_id = (((DLTensor*)K_handle)", "no definition 'int32_t dev_id"),
        ("  void* Q = ", "  seq_q = 1;\n  void* Q = ", "the checks of the arguments, from line .*'seq_q = 1;'"),
        ("  void* Q = ", "  return 0;\n  void* Q = ", "the checks of the arguments, from line .*'return 0;'"),
        ("    return -1;\n  }\n  void* Q_handle", "    return 0;\n  }\n  void* Q_handle", "the checks of the"),
        ("  if (!((num_args == 5", "  if (!((num_args = 5", "the checks of the arguments, from line .*num_args = 5"),
        ("  return 0;\n}", "  seq_q = 1;\n  return 0;\n}", "argument 0 of a call, or the call, .*'seq_q = 1;'"),
        ("  return 0;\n}", "  return 1;\n}", "argument 0 of a call, or the call, from line .*'return 1;'"),
        ("((int64_t)4);", "((int64_t)3);", "rank 3 with 24 arguments"),
    ],
)  # fmt: skip
def test_host_code_of_another_form_is_refused(host_sources, old, new, message):
    source = host_sources["seed"]
    assert old in source
    with pytest.raises(InputError, match=message):
        parse_host_source(source.replace(old, new))


def test_host_code_without_a_launch_is_refused():
    with pytest.raises(InputError, match="no kernel launch: not in the form that TileLang 0.1.15 writes"):
        parse_host_source("int main() { return 0; }\n")


def test_division_rounds_as_in_c(host_sources):
    # What TileLang writes for block_M 192.
    tiles = "(((seq_q + 191) / 192) + (((seq_q + 191) % 192) >> 31))"
    extent = parse_host_source(host_sources["seed"].replace("((seq_q + 127) >> 7)", tiles)).grid[0]
    assert [extent.at({"seq_q": rows}) for rows in (1, 192, 193)] == [1, 1, 2]
