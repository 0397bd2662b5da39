"""The cases of attention() together: what each adds to a kernel is proved beside what the others add."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from code_mutants.reading import Code, read

from tl_attention.build.compile import OPTIONAL
from tl_attention.build.generation import target
from tl_attention.files.named import resolve
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.variant import Variant

TOGETHER = {
    "best": Variant(128, "bfloat16", Mask(300, 40), optional=OPTIONAL, group=4, strided=True),
    "best_causal": Variant(104, "float16", CAUSAL, optional=OPTIONAL, group=5, strided=True),
    "seed": Variant(104, "bfloat16", Mask(300, 0), optional=OPTIONAL, group=4, strided=True),
    "d192_128_causal": Variant(192, "float16", Mask(1023, 0), 128, optional=OPTIONAL, group=8, strided=True),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_they_are_proved_together(name: str) -> None:
    from tilelang import tvm
    from tilelang.engine.lower import lower

    schedule, variant = resolve(name).schedule, TOGETHER[name]
    lowering = lowering_of(schedule)
    program = lowering.prim_func(lowering.arguments(schedule), variant)
    for_card = target(variant.arch)
    with tvm.transform.PassContext(opt_level=3, config=dict(lowering.pass_configs)), tvm.target.Target(for_card):
        made = lower(program, target=for_card, enable_host_codegen=True)
    parameters = variant.parameters(*lowering.counters(schedule))
    read(schedule, Code(made.kernel_source, made.rt_mod.inspect_source(), variant, parameters))
