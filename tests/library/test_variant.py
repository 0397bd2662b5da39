"""A variant says what is compiled; kernels, their callers and the proof go by its list of a kernel's parameters."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from mutations import shipped

from tl_attention.codeproof.frame import check_signature
from tl_attention.codeproof.read.calls import CALLS
from tl_attention.codeproof.read.text import read
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.kernels.registry import lowering_of
from tl_attention.launch.plan import HostPlan, SizeExpression
from tl_attention.launch.plan import LaunchParameter as Taken
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import SOME_GROUP, Sizes, Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load

VARIANTS = (Variant(128, "float16"), Variant(64, "bfloat16", CAUSAL, sizes=Sizes(2, 3, 100, 200), group=1))
GROUPED = tuple(replace(variant, group=3) for variant in VARIANTS)


def test_a_problem_and_its_variant():
    shape = AttentionShape(2, 3, 100, 200, 64, "bfloat16", CAUSAL)
    assert shape.variant() == Variant(64, "bfloat16", CAUSAL) != shape.variant(fixed=True)
    assert shape.variant(fixed=True) == VARIANTS[1]
    assert AttentionShape.of(shape.variant(fixed=True), shape.sizes) == replace(shape, mask=CAUSAL)
    assert AttentionShape.of(shape.variant(), shape.sizes).group == SOME_GROUP
    assert Variant(64, "float16") == Variant(64, "float16", head_dim_v=64) != Variant(64, "float16", head_dim_v=128)


@pytest.mark.parametrize("name", ["seed", "inferred", "best", "best_causal"])
@pytest.mark.parametrize("variant", [*VARIANTS, *GROUPED], ids=["runtime", "fixed", "grouped", "grouped, fixed"])
def test_a_prim_func_takes_what_the_list_says(name, variant, schedules_dir):
    schedule = load(schedules_dir / f"{name}.yaml")
    lowering = lowering_of(schedule)
    program = lowering.prim_func(Planned(schedule), variant)
    parameters = variant.parameters(*lowering.asked_by(schedule))
    assert [p.name for p in parameters][:5] == ["Q", "K", "V", "Output", "softmax_scale"]
    more = {"best": ["workers"], "best_causal": ["workers", "TileCounter"]}
    assert [p.name for p in parameters][5:] == [*([] if variant.group else ["group"]), *more.get(name, [])]
    sizes = variant.sizes._asdict() if variant.sizes else {name: name for name in Sizes._fields}
    of_kv = {None: "heads_kv", 1: sizes["heads"], 3: 1 if variant.sizes else "heads // 3"}[variant.group]
    values = {**sizes, "heads_kv": of_kv, "head_dim": variant.head_dim, "head_dim_v": variant.head_dim_v}
    for parameter, taken in zip(parameters, program.params, strict=True):
        dtype = parameter.dtype or variant.dtype
        if parameter.kind == "scalar":
            assert (taken.name, taken.dtype) == (parameter.name, dtype)
            continue
        buffer = program.buffer_map[taken]
        assert (buffer.name, buffer.dtype) == (parameter.name, dtype)
        assert [str(extent) for extent in buffer.shape] == [str(values.get(dim, dim)) for dim in parameter.dims]


SIGNATURE = (
    'extern "C" __global__ void __launch_bounds__(384, 1) attention_kernel(__grid_constant__ const CUtensorMap K_desc, '
    "half_t* __restrict__ Output, __grid_constant__ const CUtensorMap Q_desc, {}const half_t* __restrict__ V, "
    "int heads, float softmax_scale) {{\n}}"
)


def launched(code: str) -> HostPlan:
    """Returns a launch that gives what a signature takes."""
    taken = read(code, CALLS).signature.parameters
    kinds = {"descriptor": "pointer", "address": "pointer"}
    one = SizeExpression("1")
    return HostPlan(
        "attention_kernel", (), (), tuple(Taken(name, kinds.get(kind, kind)) for kind, name in taken), (one,) * 3,
        (128, 3, 1), (1, 1, 1), 0, (), (), None, None, (),
    )  # fmt: skip


@pytest.mark.parametrize("more, counters", [("", ()), ("int* __restrict__ TileCounter, ", ("TileCounter",))])
def test_generated_code_that_takes_something_else_is_refused(more, counters):
    """Tensors other than the variant's, whether the launch gives them or not, are refused."""
    code = SIGNATURE.format(more)
    plan = launched(code)
    descriptors = tuple(SimpleNamespace(name=name, dims=(), strides=()) for name in ("K_desc", "Q_desc"))

    def check(code: str, plan: HostPlan, *names: str) -> None:
        parameters = VARIANTS[0].parameters(*names)
        given = replace(plan, descriptors=descriptors, arguments=plan.arguments or tuple(p.name for p in parameters))
        check_signature(read(code, CALLS), given, parameters, "float16")

    check(code, plan, *counters)
    changes = (("Q_desc", "R_desc"), ("V, ", "V, int* __restrict__ LSE, "), ("half_t* __restrict__ Output, ", ""))
    for before, after in changes:
        other = code.replace(before, after)
        with pytest.raises(Unsafe, match="it takes .*, expected .*K, Output, Q"):
            check(other, launched(other), *counters)
        with pytest.raises(Unsafe, match="attention_kernel takes .*, attention_kernel is launched with"):
            check(other, plan, *counters)
    with pytest.raises(Unsafe, match="it takes K, Output, Q, .*V, expected K, Output, Q, .*V"):
        check(code, plan, *(() if counters else ("TileCounter",)))
    with pytest.raises(Unsafe, match="its caller gives Q, K, V, .*, the host takes K, Q, V, Output, softmax_scale"):
        check(code, replace(plan, arguments=("K", "Q", "V", "Output", "softmax_scale")), *counters)


@pytest.mark.parametrize(
    "variant",
    [Variant(128, "float16", Mask(left=-2, right=0)), Variant(128, "float16", optional=frozenset({"TileCounter"}))],
    ids=["window", "optional"],
)
def test_what_no_kernel_computes_is_refused(variant):
    with pytest.raises(
        InputError, match=r"Variant\(.*\) is not supported, expected (a window of at least 0|of what is opt)"
    ):
        compile_kernel(shipped()["best"], variant)
    with pytest.raises(InputError, match="head_dim_v 100 is not supported, expected a multiple of 8 up to 256"):
        compile_kernel(shipped()["best"], Variant(128, "float16", head_dim_v=100))
