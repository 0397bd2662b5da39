"""test_score_bias.py runs these tests in a copy of the package in which score_bias.patch was applied."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from code_mutants.kernels import lowered
from code_mutants.reading import prove
from golden_kernels import GoldenKernel
from on_cpu import on_cpu

import tl_attention
from tl_attention import InputError, ScheduleRefused, attention
from tl_attention.kernels.shared import features
from tl_attention.lab.measure.peers import why_not
from tl_attention.lab.measure.records import problem_of, read_rows, shape_of
from tl_attention.oracle import features as in_oracle
from tl_attention.oracle.interpret import verify
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.conditions import Case
from tl_attention.schedule.files.defaults import FILE, read

__all__ = ["on_cpu"]

BIAS = 3.0
SHAPE = AttentionShape.parse("1,2,40,64")
RULE = "rules:\n  - {head_dims: [64], score_bias: true, schedule: d64, why: a test, record: none yet}\n"
KERNELS = {
    "best": GoldenKernel("best", optional=frozenset({"score_bias"})),
    "best_causal, asked": GoldenKernel(
        "best_causal", CAUSAL, optional=frozenset({"score_bias", "softcap", "Sinks", "LSE"}), group=2, strided=True
    ),
    "softcap_causal, window": GoldenKernel(
        "softcap_causal", Mask(100, 0), optional=frozenset({"score_bias", "softcap"})
    ),
    "seed": GoldenKernel("seed", CAUSAL, "bfloat16", optional=frozenset({"score_bias", "LSE"})),
}


def inputs() -> list[torch.Tensor]:
    torch.manual_seed(7)
    return [torch.randn(1, 2, 40, 64).half() for _ in "qkv"]


def test_the_package_is_the_patched_copy() -> None:
    assert Path(tl_attention.__file__).parents[1] == Path(__file__).parents[1]


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"softcap": 2.0}, {"window_size": (9, 2)}], ids=str)
def test_the_output_stays_and_the_lse_moves(on_cpu, options) -> None:
    plain, lse = attention(*inputs(), return_lse=True, **options)
    # The second call takes the plan that the first has left.
    for _ in range(2):
        biased, moved = attention(*inputs(), return_lse=True, score_bias=BIAS, **options)
        assert torch.allclose(plain, biased, atol=2e-3) and torch.allclose(lse + BIAS, moved, atol=1e-4)
    assert {"score_bias" in variant.optional for _, variant in on_cpu.asked} == {False, True}


def test_the_operator_has_it(on_cpu) -> None:
    found = torch.compile(lambda *given: attention(*given, score_bias=BIAS), backend="eager", fullgraph=True)(*inputs())
    assert torch.equal(found, attention(*inputs(), score_bias=BIAS))
    assert "float score_bias=0." in str(torch.ops.tl_attention.forward.default._schema)


@pytest.mark.parametrize("value", [float("nan"), 1e5, True, "3"])
def test_a_value_that_is_none_is_refused(on_cpu, value) -> None:
    with pytest.raises(InputError, match="^attention: score_bias is .*, expected 0, which is off, or -8192 to 8192$"):
        attention(*inputs(), score_bias=value)


def test_it_has_no_gradient(on_cpu) -> None:
    q, k, v = inputs()
    with pytest.raises(InputError, match="with score_bias 3.0 there is no backward"):
        attention(q.requires_grad_(), k, v, score_bias=BIAS)


def test_a_problem_and_its_record_have_it() -> None:
    shape = SHAPE.asking(score_bias=BIAS)
    assert str(shape).endswith(", score_bias 3") and shape.variant().optional == {"score_bias"}
    assert problem_of(shape) == problem_of(SHAPE) | {"score_bias": BIAS} and shape_of(problem_of(shape)) == shape
    assert all("score_bias" in why_not(peer, shape) for peer in ("cudnn", "flash2", "fa3"))


def test_the_command_line_verifies_it_and_records_it(cli, tmp_path) -> None:
    record = tmp_path / "rows.jsonl"
    done = cli("run", "seed", "--shape", "1,2,200,128", "--score-bias", str(BIAS), "--output", record)
    assert done.exit_code == 0, done.output
    [row] = read_rows(record)
    assert row.status == "checked_on_cpu" and row.shape.asked["score_bias"] == BIAS
    assert cli("run", "seed", "--score-bias", "1e6").exit_code == 2


def test_a_rule_may_ask_for_it(tmp_path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(FILE.read_text().replace("rules:\n", RULE))
    found = read(file)
    shapes = SHAPE, SHAPE.asking(score_bias=BIAS)
    assert [found.rules[found.number(Case.of(shape))].schedule for shape in shapes] == ["short_keys", "d64"]


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_with_it_are_proved_and_their_programs_are_right(name) -> None:
    kernel = KERNELS[name]
    code = lowered(kernel)
    assert "score_bias / " in code.source
    prove(kernel.schedule, code)
    reports = verify(Planned(kernel.schedule).program, kernel.schedule, kernel.variant)
    assert all(report.ok for report in reports.values()), reports


def test_a_kernel_that_forgets_it_is_refused(monkeypatch) -> None:
    """TileLang leaves score_bias out of the host's code if the kernel does not use it."""
    forgetful = features.InKernel(score=lambda x, after, factor, s: x / factor * factor)
    monkeypatch.setitem(features.IN_KERNEL, "score_bias", forgetful)
    kernel = GoldenKernel("seed", FULL, optional=frozenset({"score_bias"}))
    with pytest.raises(ScheduleRefused, match="no definition 'float score_bias"):
        prove(kernel.schedule, lowered(kernel))


def test_a_kernel_that_takes_it_and_does_not_read_it_is_refused() -> None:
    code = lowered(KERNELS["best"])
    with pytest.raises(ScheduleRefused, match="it does not read score_bias"):
        prove(KERNELS["best"].schedule, replace(code, source=code.source.replace("(score_bias / softmax_scale)", "0")))


def test_a_launch_that_passes_another_number_is_refused() -> None:
    code = lowered(KERNELS["seed"])
    wrong = code.host_source.replace("((double)score_bias)", "((double)softmax_scale)")
    assert wrong != code.host_source
    with pytest.raises(ScheduleRefused, match="is launched with"):
        prove(KERNELS["seed"].schedule, replace(code, host_source=wrong))


def test_half_of_the_threads_adding_it_is_refused() -> None:
    code = lowered(KERNELS["best"])
    [line, *_] = [line for line in code.source.splitlines() if "score_bias / " in line]
    wrong = code.source.replace(line, f"if (((int)threadIdx.x) < 64) {{ {line} }}", 1)
    with pytest.raises(ScheduleRefused, match="is nothing that is known"):
        prove(KERNELS["best"].schedule, replace(code, source=wrong))


def test_the_interpreter_tells_one_that_is_not_added(monkeypatch) -> None:
    kernel = GoldenKernel("seed", FULL, optional=frozenset({"score_bias", "LSE"}))
    nothing = in_oracle.InOracle(
        in_oracle.IN_ORACLE["score_bias"].scores, lambda bias, factor: (lambda x, _: x, factor)
    )
    monkeypatch.setitem(in_oracle.IN_ORACLE, "score_bias", nothing)
    reports = verify(Planned(kernel.schedule).program, kernel.schedule, kernel.variant)
    assert reports["late"].ok and not reports["late LSE"].ok
