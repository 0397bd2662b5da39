"""test_added_features.py runs these tests in a copy of the package in which the patch of one feature was applied."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from code_mutants.kernels import lowered
from code_mutants.reading import Code, prove
from golden_kernels import BOTH, LEFT, GoldenKernel
from on_cpu import Kernels, on_cpu
from torch import Tensor

import tl_attention
from tl_attention import InputError, ScheduleRefused, attention, attention_varlen
from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.shared.features import FeaturePlaces
from tl_attention.lab.measure.peers import why_not
from tl_attention.lab.measure.records import problem_of, read_rows, shape_of
from tl_attention.lab.oracle import features as in_oracle
from tl_attention.lab.oracle.interpret import verify
from tl_attention.op.few import kernels_for_any_lengths
from tl_attention.problem.features import BY_WORD
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.conditions import Case
from tl_attention.schedule.files.defaults import FILE, read
from tl_attention.schedule.files.named import resolve

__all__ = ["on_cpu"]

BIAS = 3.0
SCALES = 2.0 ** torch.tensor([-1, 0, 1, 2, -2, 1, 0, -1])
SINKS = torch.linspace(-1, 2, 8)
Call = Callable[..., tuple[Tensor, Tensor]]


def biased(call: Call, q: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """The output stays but for the sinks, which have no bias, and the LSE moves."""
    options |= {"sinks": options["sinks"] - BIAS} if "sinks" in options else {}
    output, lse = call(q, *others, return_lse=True, **options)
    return output, lse + BIAS


def scaled(call: Call, q: Tensor, *others: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """Scores have the factor of their queries: (batch, heads, seq, head_dim), or packed (rows, heads, head_dim)."""
    of_heads = SCALES[: q.shape[1]].reshape(-1, *[1] * (q.dim() - 2))
    return call(q * of_heads.to(q.dtype), *others, return_lse=True, **options)


# The kernel, a change of its source or the host's, and why the proof refuses it.
Fault = tuple[str, str, str, str, str]


@dataclass(frozen=True)
class Added:
    """An Added is the feature of a patch, with what a test needs to call it and to break it."""

    value: Any  # of a call
    asked: Any  # what a problem has of it
    same: Callable[..., tuple[Tensor, Tensor]]  # says the same without the feature
    wrong: tuple[Any, ...]  # values that are none
    expected: str  # what refuses them
    apart: bool  # heads have tiles of their own
    said: str
    faults: dict[str, Fault]


READ = "own[0] = HeadScales[((int64_t)head_3)];"
OTHER_HEAD = READ.replace("head_3)", "head_3) + 1")
ADDED = {
    "score_bias": Added(
        value=BIAS,
        asked=BIAS,
        same=biased,
        wrong=(float("nan"), 1e5, True, "3"),
        expected="expected 0, which is off, or -8192 to 8192$",
        apart=False,
        said="score_bias 3",
        faults={
            "not read": ("best", "source", r"\(score_bias / softmax_scale\)", "0", "it does not read score_bias"),
            "another number": ("seed", "host", r'"name": "score_bias"', '"name": "softmax_scale"', "launched with"),
            "of half": ("best", "source", r"\n(.*score_bias / .*)\n", r"\nif (((int)threadIdx.x) < 64) { \1 }\n", "known"),
        },
    ),
    "head_scales": Added(
        value=SCALES,
        asked=True,
        same=scaled,
        wrong=(1.0, SCALES[:1], SCALES.half(), SCALES.repeat(2)[::2]),
        expected="expected (a tensor|q's)",
        apart=True,
        said="head_scales",
        faults={
            "not read": ("best", "source", re.escape(READ), "", "reads HeadScales 0 times"),
            "another head": ("best", "source", re.escape(READ), OTHER_HEAD, "HeadScales"),
            "another tensor": ("best", "host", r'"name": "HeadScales"', '"name": "Output"', "launched with"),
            "twice": ("best", "source", re.escape(READ), READ + "\n" + READ, "reads HeadScales 2 times"),
            "of half": ("best", "source", re.escape(READ), f"if (((int)threadIdx.x) < 64) {{\n{READ}\n}}", "64 of the 128 threads"),
            # There results of parts are rows of tiles, which have no head.
            "a part's head": ("packed parts", "source", r"(HeadScales\[\(\(int64_t\))head_\d+", r"\g<1>0", "HeadScales"),
        },
    ),
}  # fmt: skip
[WORD] = ADDED.keys() & BY_WORD.keys()
OURS, FEATURE, NAME = ADDED[WORD], BY_WORD[WORD], BY_WORD[WORD].name
SHAPE = AttentionShape.parse("1,2,40,64")
RULE = f"rules:\n  - {{head_dims: [64], {WORD}: true, schedule: d64, why: a test, record: none yet}}\n"
EVERY = frozenset({NAME, "softcap", "Sinks", "LSE"})
KERNELS = {
    "best": GoldenKernel("best", optional=frozenset({NAME})),
    "best_causal, asked": GoldenKernel("best_causal", CAUSAL, optional=EVERY, strided=True),
    "softcap_causal, window": GoldenKernel("softcap_causal", Mask(100, 0), optional=frozenset({NAME, "softcap"})),
    "seed": GoldenKernel("seed", CAUSAL, "bfloat16", optional=frozenset({NAME, "LSE"})),
    "seed, asked": GoldenKernel("seed", CAUSAL, "bfloat16", 104, optional=EVERY, strided=True),
    "packed": GoldenKernel("best_causal", CAUSAL, optional=frozenset({NAME, "Sinks"}), packed=True),
    "parts": GoldenKernel("short", BOTH, optional=frozenset({NAME, "Sinks"}), parts=True),
    "packed parts": GoldenKernel("best_causal", LEFT, size=96, optional=EVERY, packed=True, parts=True),
}


def inputs(*size: int, heads_kv: int = 0, keys: int = 0) -> list[Tensor]:
    """Draws q, k and v of a size (batch, heads, seq, head_dim), or of other heads and lengths of k and v."""
    torch.manual_seed(7)
    batch, heads, rows, columns = size or (1, 2, 40, 64)
    of_keys = (batch, heads_kv or heads, keys or rows, columns)
    return [torch.randn(of).half() for of in ((batch, heads, rows, columns), of_keys, of_keys)]


def value(heads: int) -> Any:
    return OURS.value[:heads] if isinstance(OURS.value, Tensor) else OURS.value


def check(on_cpu: Kernels, call: Any, given: list[Any], **options: Any) -> set[Variant]:
    """Holds a call with the feature to one without it, and returns the variants that it asks for."""
    wanted = OURS.same(call, *given, **options)
    on_cpu.asked.clear()
    # The second call takes the plan that the first has left.
    for _ in range(2):
        found = call(*given, return_lse=True, **{WORD: value(given[0].shape[1])}, **options)
        assert torch.allclose(wanted[0], found[0], atol=2e-3) and torch.allclose(wanted[1], found[1], atol=1e-3)
    for schedule, variant in on_cpu.asked:
        assert NAME in variant.optional
        lowering_of(schedule).check_variant(schedule, variant)
    return {variant for _, variant in on_cpu.asked}


def packed(rows: list[int], keys: list[int], heads: int, heads_kv: int) -> list[Any]:
    """Draws the arguments of attention_varlen for sequences of these lengths."""
    q, k, v = inputs(1, heads, sum(rows), 128, heads_kv=heads_kv, keys=sum(keys))
    offsets = [torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) for lengths in (rows, keys)]
    return [*(x[0].transpose(0, 1).contiguous() for x in (q, k, v)), *offsets, max(rows), max(keys)]


def test_the_package_is_the_patched_copy() -> None:
    assert Path(__file__).is_relative_to(Path(tl_attention.__file__).parents[1])


CALLS: tuple[dict[str, Any], ...] = (
    {},
    {"causal": True, "sinks": SINKS[:2]},
    {"softcap": 2.0},
    {"window_size": (9, 2), "scale": np.float64(0.25)},
)


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_a_call_gives_what_one_without_it_gives(on_cpu, options) -> None:
    assert check(on_cpu, attention, inputs(), **options)
    assert check(on_cpu, attention, inputs(1, 2, 40, 64, keys=20), **options)


@pytest.mark.parametrize("options", CALLS, ids=str)
def test_so_does_a_call_of_packed_sequences(on_cpu, options) -> None:
    variants = check(on_cpu, attention_varlen, packed([3, 0, 40, 1], [50, 7, 40, 0], 2, 1), **options)
    assert all(variant.packed and not variant.parts for variant in variants)


def of_tile(group: int) -> tuple[int | None, int]:
    """Returns a variant's group and heads of a tile where so many heads share K and V."""
    return (None, 1) if OURS.apart or group == 1 else (group, group)


@pytest.mark.parametrize("sinks", [{}, {"sinks": SINKS}], ids=str)
def test_one_query_has_keys_in_parts(on_cpu, sinks) -> None:
    for given in (inputs(1, 8, 1, 128, keys=3000), inputs(1, 8, 1, 128, heads_kv=2, keys=3000)):
        for variant in check(on_cpu, attention, given, **sinks):
            assert variant.parts and variant.acting == {NAME, "LSE"}
            group = 8 // given[1].shape[1]
            assert (variant.group, variant.tile_heads) == of_tile(group)
    [variant] = check(on_cpu, attention_varlen, packed([1] * 3, [3000, 5, 900], 8, 2), **sinks)
    assert variant.parts and (variant.group, variant.tile_heads) == of_tile(4)


def test_rows_of_a_group_are_one_heads_or_apart(on_cpu) -> None:
    for options in ({}, {"causal": True}):
        [variant] = check(on_cpu, attention, inputs(2, 8, 5, 64, heads_kv=2, keys=41), **options)
        assert (variant.group, variant.tile_heads) == of_tile(4)
    grouped = AttentionShape(1, 8, 1, 1, 128, heads_kv=2).asking(**{WORD: OURS.asked})
    heads = {heads for _, heads, _ in kernels_for_any_lengths(grouped, resolve("short").schedule, False)}
    assert heads == ({1} if OURS.apart else {1, 4})


def test_a_kernel_with_rows_of_heads_that_it_tells_apart_is_refused() -> None:
    for name, rows in (
        ("short", {"group": 4, "tile_heads": 4}),
        ("grouped", {"packed": True, "parts": True, "group": 4, "tile_heads": 4}),
    ):
        schedule = resolve(name).schedule
        variant = Variant(128, "float16", optional=frozenset({NAME}), **rows)
        if not OURS.apart:
            lowering_of(schedule).check_variant(schedule, variant)
            continue
        for refused in (
            lambda: lowering_of(schedule).check_variant(schedule, variant),
            lambda: prove(schedule, replace(lowered(KERNELS["best"]), variant=variant)),
        ):
            with pytest.raises(ScheduleRefused, match=f"{WORD} with rows of several heads in a tile, which lowering"):
                refused()


def test_the_operators_have_it(on_cpu) -> None:
    for call, given in ((attention, inputs()), (attention_varlen, packed([3, 40], [50, 40], 2, 2))):
        own = {WORD: value(2)}
        compiled = torch.compile(lambda *given: call(*given, **own), backend="eager", fullgraph=True)
        assert torch.equal(compiled(*given), call(*given, **own))
    for operator in (torch.ops.tl_attention.forward, torch.ops.tl_attention.forward_varlen):
        assert re.search(rf"(float|Tensor\?) {WORD}=", str(operator.default._schema))


@pytest.mark.parametrize("wrong", OURS.wrong, ids=str)
def test_a_value_that_is_none_is_refused(on_cpu, wrong) -> None:
    for call, given in ((attention, inputs(1, 8, 4, 64)), (attention_varlen, packed([4], [9], 8, 8))):
        with pytest.raises(InputError, match=f"^attention: {WORD} is .*, {OURS.expected}"):
            call(*given, **{WORD: wrong})


def test_it_has_no_gradient(on_cpu) -> None:
    for call, (q, *others) in ((attention, inputs()), (attention_varlen, packed([4], [9], 2, 2))):
        with pytest.raises(InputError, match=f"with {WORD}.* there is no backward"):
            call(q.requires_grad_(), *others, **{WORD: value(2)})


@pytest.mark.parametrize("loop", ["dq", "dkdv"])
def test_a_kernel_of_gradients_refuses_it(loop) -> None:
    """It does not know its derivative."""
    schedule = resolve(loop).schedule
    of_loops = {v.loop: v for v in AttentionShape(1, 2, 9, 9, 64).asking(**{WORD: OURS.asked}).variants_of_gradients()}
    with pytest.raises(ScheduleRefused, match=f"^{NAME}, which lowering warp_specialized does not compute$"):
        lowering_of(schedule).check_variant(schedule, of_loops[loop])


def test_a_problem_and_its_record_have_it() -> None:
    shape = SHAPE.asking(**{WORD: OURS.asked})
    assert str(shape).endswith(f", {OURS.said}") and shape.variant().optional == {NAME}
    assert problem_of(shape) == problem_of(SHAPE) | {WORD: OURS.asked} and shape_of(problem_of(shape)) == shape
    assert all(WORD in why_not(peer, shape) for peer in ("cudnn", "flash2", "fa3"))


def test_the_command_line_verifies_it_and_records_it(cli, tmp_path) -> None:
    record, given = tmp_path / "rows.jsonl", [str(OURS.asked)] if FEATURE.is_number else []
    done = cli("run", "seed", "--shape", "1,2,200,128", FEATURE.option, *given, "--output", record)
    assert done.exit_code == 0, done.output
    [row] = read_rows(record)
    assert row.status == "checked_on_cpu" and row.shape.asked[WORD] == OURS.asked
    assert cli("run", "seed", FEATURE.option, "1e6").exit_code == 2


def test_a_rule_may_ask_for_it(tmp_path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(FILE.read_text().replace("rules:\n", RULE))
    found = read(file)
    shapes = SHAPE, SHAPE.asking(**{WORD: OURS.asked})
    assert [found.rules[found.choose(Case.of(shape))].schedule for shape in shapes] == ["short_keys", "d64"]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_with_it_are_proved_and_their_programs_are_right(name) -> None:
    kernel = KERNELS[name]
    code = lowered(kernel)
    assert prove(kernel.schedule, code)
    if FEATURE.acts == "factor":
        # It is one with the factor of the exponentials: nothing else has it but the line that reads it.
        kernels = code.source[code.source.index("__launch_bounds__") :]
        [own] = re.findall(rf"(\w+\[0\]) = {NAME}\[", kernels)
        assert kernels.count(own) == 1 + kernels.count(f"(softmax_scale * {own})") >= 2
    reports = verify(Planned(kernel.schedule).program, kernel.schedule, kernel.variant)
    assert all(report.ok for report in reports.values()), reports


@pytest.mark.parametrize("fault", OURS.faults)
def test_generated_code_with_a_fault_is_refused(fault) -> None:
    name, where, pattern, put, words = OURS.faults[fault]
    schedule, code = KERNELS[name].schedule, lowered(KERNELS[name])
    source, host = (
        re.sub(pattern, put, x) if where == y else x for x, y in ((code.source, "source"), (code.host_plan, "host"))
    )
    assert (source, host) != (code.source, code.host_plan)
    with pytest.raises(ScheduleRefused, match=words):
        prove(schedule, Code(source, host, code.variant, code.parameters))  # fmt: skip


def test_a_kernel_that_forgets_it_is_refused(monkeypatch) -> None:
    """TileLang leaves a parameter out of the host's IR if the kernel does not use it."""
    nowhere = FeaturePlaces.of([])
    monkeypatch.setattr(FeaturePlaces, "of", lambda parameters: nowhere)
    kernel = GoldenKernel("seed", FULL, optional=frozenset({NAME}))
    with pytest.raises(InputError, match=f"host code: (no definition of .*{NAME}|the expression Call tirx)"):
        prove(kernel.schedule, lowered(kernel))


def test_the_interpreter_tells_a_program_that_forgets_it(monkeypatch) -> None:
    kernel = GoldenKernel("seed", FULL, optional=frozenset({NAME, "LSE"}))
    defined = in_oracle.IN_ORACLE[WORD].scores
    monkeypatch.setitem(in_oracle.IN_ORACLE, WORD, in_oracle.InOracle(defined, lambda own, factor: (None, factor)))
    reports = verify(Planned(kernel.schedule).program, kernel.schedule, kernel.variant)
    assert not reports["late LSE"].ok and reports["late"].ok != (FEATURE.acts == "factor")
