"""nvcc compiles what TileLang generates; of shipped schedules ptxas's loops and waits are as they should be."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import pytest
from golden_kernels import KERNELS
from machine_code import cubin
from mma_sync_schedules import OF_OTHER_CODE, SHIPPED
from mutations import SCHEDULES, fitting_head_dim, shipped
from once import Given, Kernel, lowered
from tiers import exhaustive

from tl_attention.compiler.compile import CompiledKernel, compile_kernel
from tl_attention.compiler.generation import machine_code
from tl_attention.compiler.toolchain import use_nvcc
from tl_attention.kernels.registry import LOWERINGS
from tl_attention.lab.machine_code.nvcc import compiler_messages, serialised_because
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.lab.machine_code.sass import steady
from tl_attention.lab.measure import compilation
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

NAME = "fa3_overlap"
SCHEDULE = shipped()[NAME]
VARIANT = Variant(128, "float16")


@pytest.fixture(scope="module")
def compiled() -> CompiledKernel:
    return compile_kernel(SCHEDULE, VARIANT)


@pytest.fixture
def serialised() -> CompiledKernel:
    """Returns the generated causal kernel, with accumulators touched while their products are in flight."""
    code = lowered(KERNELS[NAME])
    source, waits = re.subn(r"(tl::wait_wgmma<\d>)", r"acc_s[0] += 1.0f; acc_o[0] += 1.0f; \1", code.source)
    assert waits
    with use_nvcc():
        made = machine_code(source, code.variant.arch)
    return CompiledKernel(source, code.host_plan, code.variant, code.parameters, None, made)


@exhaustive
def test_a_kernels_loop_has_the_instructions_that_its_tile_needs(compiled):
    loop = steady(MachineCode(compiled).report.loops)
    per_product = {"mma0": VARIANT.head_dim // 16, "mma1": SCHEDULE.block_N // 16}
    assert loop.products == sum(per_product.values()) == 19
    scores = SCHEDULE.block_M * SCHEDULE.block_N // SCHEDULE.threads
    rescaled_rows = 2
    assert loop.exponentials == loop.counts["MUFU"] == scores + rescaled_rows == 90
    assert loop.spills == 0 and 500 < loop.instructions < 900
    assert loop.counts["FFMA"] >= scores and loop.counts["FMNMX"] >= scores
    # The first addition of a row is part of the FMA that scales the sum so far.
    assert loop.counts["FADD"] >= scores - rescaled_rows
    assert len(loop.product_waits) == 2 and len(loop.barrier_waits) >= 2 and len(loop.arrives) >= 2
    for places in (loop.product_waits, loop.barrier_waits, loop.arrives):
        assert list(places) == sorted(places) and 0 <= places[0] <= places[-1] <= 90
    report = str(MachineCode(compiled).report)
    assert "spills" in report and "HGMMA" not in report


EXACT = sorted((SCHEDULES / "experiments").rglob("*exact*.yaml"))


@exhaustive
@pytest.mark.parametrize("path", EXACT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_wait_is_where_the_schedule_has_it(path):
    schedule = load(path)
    mask = CAUSAL if path.parent.name == "causal" else FULL
    loop = steady(MachineCode(compile_kernel(schedule, replace(VARIANT, mask=mask))).report.loops)
    # A thread has two rows and every fourth pair of columns; the two exponentials of scores_scale may come before.
    columns = schedule.split.exp[0]
    assert columns // 2 <= max(loop.product_waits) <= columns // 2 + 2
    # The buffer of V is released right there, to each block of the cluster; that of K before the exponentials.
    cluster = schedule.kernel.cluster
    assert all(place == 0 for place in loop.arrives[:cluster])
    assert all(0 <= place - max(loop.product_waits) <= 2 for place in loop.arrives[cluster:])


@exhaustive
def test_the_release_is_where_the_schedule_has_it():
    options = load(SCHEDULES / "experiments/causal/waits_exact.yaml").model_dump()
    group = [list(names) for names in options["group"]]
    group[2] = [
        "max_prev",
        "max_init",
        "row_max",
        "max_merge",
        "scale",
        "exp.0",
        "exp.1",
        "exp.2",
        "row_sum",
        "sum_merge",
    ]
    schedule = Schedule(
        **options | {"group": group, "split": {"exp": [32, 64, 32]}, "release_before": {"load_v": "exp.2"}}
    )
    loop = steady(MachineCode(compile_kernel(schedule, replace(VARIANT, mask=CAUSAL))).report.loops)
    assert 16 <= max(loop.product_waits) <= 18 and 48 <= loop.arrives[-1] <= 50


@exhaustive
def test_of_products_that_stay_in_flight_ptxas_says_nothing(compiled):
    assert not serialised_because(compiler_messages(compiled.source, VARIANT.arch))


@exhaustive
def test_a_candidate_whose_products_ptxas_serialised_is_refused_not_broken(serialised, monkeypatch):
    monkeypatch.setattr(compilation, "compile_kernel", lambda schedule, variant: serialised)
    result = compilation.compile_candidate(
        Candidate(NAME, AttentionShape(1, 2, 256, 256, 128, mask=CAUSAL), Planned(SCHEDULE))
    )
    assert result.status == "refused" and result.report is None
    words = (
        r"serialised .* waits \d+ times for \d+ HGMMA, expected once for each product; "
        r"ptxas says: \(C75\d\d\) .* serialized due to "
    )
    assert re.search(words, result.error) and "\n" not in result.error, result.error


# --- nvcc ------------------------------------------------------------------------------------------------------------


EVERY = {
    **KERNELS,
    **{
        name: Given(schedule, Variant(fitting_head_dim(name), "float16", CAUSAL))
        for name, schedule in shipped().items()
        if schedule.lowering == "warp_specialized"
    },
    **{name: Given(SHIPPED[name], Variant(128, "float16", CAUSAL)) for name in OF_OTHER_CODE},
}
# nvcc spends most of its time on the headers.
PARTS = 4
EXTERN = 'extern "C" '


def together(sources: Iterable[str]) -> str:
    """Returns one text of all kernels, each in a namespace of its own, behind what they include."""
    headers, kernels = [], []
    for number, source in enumerate(sources):
        before = source[: source.index('extern "C" __global__')]
        headers += re.findall(r"^#.*$", before, re.MULTILINE)
        kernels.append(f"namespace kernel_{number} {{\n{source.replace(EXTERN, '')}\n}}")
    return "\n".join((*headers, *kernels))


ONE_EACH = ("ws_seed", "seed", "mma_sync_small", "inferred")


def has_machine_code(chosen: list[Kernel]) -> None:
    """Checks that nvcc makes machine code of each of these kernels."""
    made = cubin(together(lowered(kernel).source for kernel in chosen))
    found = {int(number) for number in re.findall(rb"\.text\._ZN\d+kernel_(\d+)16attention_kernel", made)}
    assert found == {*range(len(chosen))}


@exhaustive
def test_one_kernel_of_each_lowering_has_machine_code() -> None:
    chosen = [KERNELS[name] for name in ONE_EACH]
    assert {kernel.schedule.lowering for kernel in chosen} == {*LOWERINGS}
    has_machine_code(chosen)


@exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_has_machine_code(part: int) -> None:
    has_machine_code([*EVERY.values()][part::PARTS])
