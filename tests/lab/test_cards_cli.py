"""`--arch` names a card that is not at hand: commands compile, check and speak for it; attention() does not."""

import re
from types import SimpleNamespace

import pytest
import torch
from stand_in import Compilers, Gpu, gpus, launched_on, on_a_machine

from tl_attention import attention
from tl_attention.errors import InputError
from tl_attention.lab.measure import session, trials
from tl_attention.lab.measure.device import VisibleGpu
from tl_attention.lab.measure.records import read_rows
from tl_attention.op import checks
from tl_attention.op.compiled import kernel_of

__all__ = ["gpus", "launched_on", "on_a_machine"]
pytestmark = pytest.mark.usefixtures("gpus")

OF_OTHER_CARDS = "mma_sync_d64"
SHAPE = ("--shape", "1,2,256,64", "--dtype", "fp16")


@pytest.fixture
def measured(monkeypatch, on_a_machine, tmp_path, cli):
    """Runs `run` or `bench` with stand-ins, and returns the rows, the command's result, and what the GPU had to do."""
    gpu, asked = Gpu(), []

    class Noting(Compilers):
        def compiled(self, candidate):
            asked.append(candidate)
            return super().compiled(candidate)

    monkeypatch.setattr(session, "Worker", lambda: gpu)
    monkeypatch.setattr(session, "compile_each", Noting())
    monkeypatch.setattr(trials.interpret, "verify", lambda *of: {"": __import__("stand_in").GOOD})

    def run(*command: str):
        file = tmp_path / "rows.jsonl"
        result = cli(*command, "--output", file)
        return SimpleNamespace(result=result, rows=read_rows(file) if file.exists() else [], gpu=gpu, asked=asked)

    return run


A100 = VisibleGpu("GPU-0", "NVIDIA A100-SXM4-80GB", (8, 0), 108)
RTX_4080 = VisibleGpu("GPU-0", "NVIDIA GeForce RTX 4080", (8, 9), 76)


def test_without_a_gpu_a_card_that_is_asked_for_is_compiled_for(measured) -> None:
    found = measured("run", OF_OTHER_CARDS, "--arch", "sm_86", *SHAPE)
    assert found.result.exit_code == 0, found.result.output
    assert [(candidate.arch, candidate.sms) for candidate in found.asked] == [("sm_86", 82)]
    assert [row.arch for row in found.rows] == ["sm_86"]


def test_on_another_gpu_nothing_is_launched_and_a_line_says_so(measured, gpus) -> None:
    gpus(A100)
    found = measured("run", OF_OTHER_CARDS, "--arch", "sm_86", *SHAPE)
    assert found.result.exit_code == 0 and found.gpu.calls == []
    words = "compiled for sm_86 (RTX 3090); the GPU here is NVIDIA A100-SXM4-80GB: nothing is launched on it\n"
    assert found.result.stderr.count(words) == 1
    assert [(row.arch, row.status, row.device) for row in found.rows] == [("sm_86", "checked_on_cpu", None)]


@pytest.mark.parametrize(
    "words, peers", [(["run", "--arch", "sm_89"], set()), (["run"], set()), (["bench"], {"cudnn"})]
)
def test_on_the_gpu_at_hand_it_is_launched_for_as_many_sms_as_that_has(words, peers, measured, gpus) -> None:
    gpus(RTX_4080)
    found = measured(*words, OF_OTHER_CARDS, *SHAPE)
    assert "nothing is launched" not in found.result.stderr and ("sample", OF_OTHER_CARDS) in found.gpu.calls
    assert [(candidate.arch, candidate.sms) for candidate in found.asked] == [("sm_89", 76)]
    assert {(row.name, row.arch, row.status) for row in found.rows} == {
        (name, "sm_89", "ok") for name in (OF_OTHER_CARDS, *peers)
    }


def test_a_gpu_that_is_no_card_may_compile_for_one(measured, gpus) -> None:
    gpus(VisibleGpu("GPU-0", "Orin", (8, 7), 16))
    found = measured("run", OF_OTHER_CARDS, "--arch", "sm_90a", *SHAPE)
    assert found.result.exit_code == 0 and found.gpu.calls == []
    assert "the GPU here is Orin: nothing is launched on it" in found.result.stderr


def test_bench_takes_the_schedules_of_the_card(measured, gpus) -> None:
    gpus(RTX_4080)
    found = measured("bench", *SHAPE)
    assert found.result.exit_code == 0, found.result.output
    assert {row.name for row in found.rows} == {OF_OTHER_CARDS, "cudnn"}
    assert re.search(
        r"left out: \d+ of \d+ schedules: inferred, pipelined, warp_specialized is not for sm_89 \(RTX 4090\)",
        found.result.stderr,
    )


def test_check_and_explain_say_which_card_they_are_about(cli, gpus) -> None:
    assert cli("check", OF_OTHER_CARDS).stdout == f"{OF_OTHER_CARDS}: proved safe at head_dim 64\n"
    of_86 = f"{OF_OTHER_CARDS}: proved safe at head_dim 64 on sm_86 (RTX 3090)\n"
    assert cli("check", OF_OTHER_CARDS, "--arch", "sm_86").stdout == of_86
    assert "fits the SM of sm_86 (RTX 3090) at head_dim 64" in cli("explain", OF_OTHER_CARDS, "--arch", "sm_86").stdout
    # Each for the card at hand where it is compiled for that, else for Hopper.
    gpus(RTX_4080)
    assert "on sm_89 (RTX 4090)" in cli("check", OF_OTHER_CARDS).stdout
    assert cli("check", "best").stdout == "best: proved safe at head_dim 64 and 128\n"


def test_check_of_a_card_takes_what_is_for_it(cli) -> None:
    result = cli("check", "--arch", "sm_80")
    assert result.exit_code == 0 and "left out: " in result.stderr
    assert {line.partition(":")[0] for line in result.stdout.splitlines()} >= {OF_OTHER_CARDS}
    assert "best:" not in result.stdout


def test_explain_of_a_call_is_about_the_card(cli) -> None:
    shape = ("--shape", "1,2,256,64")
    assert cli("explain", "--call", "--arch", "sm_86", *shape).stdout.startswith(f"{OF_OTHER_CARDS}\n")
    assert not cli("explain", "--call", *shape).stdout.startswith(OF_OTHER_CARDS)


def test_a_card_goes_by_its_name_too(cli) -> None:
    for names in (("sm_86", "rtx3090", "RTX 3090"), ("sm_80", "a100"), ("sm_90a", "sm_90", "H200", "h100")):
        [shown] = {cli("explain", "--call", "--shape", "1,2,256,64", "--arch", name).stdout for name in names}
        assert (f"case    {names[0]} " in shown) == (names[0] != "sm_90a")


# --- attention() -----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_a_4080(launched_on, monkeypatch):
    """Makes `attention` take CPU tensors for those of an RTX 4080, and returns what it compiles."""
    monkeypatch.setattr(checks, "checked_card", lambda of: RTX_4080.card)
    return launched_on


def test_attention_compiles_for_the_card_of_its_tensors(on_a_4080) -> None:
    q = torch.zeros(1, 2, 64, 64, dtype=torch.float16)
    attention(q, q, q)
    attention(q, q, q, causal=True, return_lse=True)
    assert [variant.arch for variant, _ in on_a_4080] == ["sm_89"] * 2


@pytest.mark.parametrize("options, head_dim", [({}, 96), ({"softcap": 30.0}, 64)])
def test_a_case_that_the_card_has_no_schedule_for_is_refused_in_one_line(options, head_dim, on_a_4080) -> None:
    q = torch.zeros(1, 2, 64, head_dim, dtype=torch.float16)
    with pytest.raises(InputError) as error:
        attention(q, q, q, **options)
    text = str(error.value)
    assert text.startswith(
        f"attention: no default schedule serves sm_89 (RTX 4090), head_dim {head_dim}, float16, mask full"
    )
    assert text.endswith("; or a schedule by its name") and "\n" not in text and not on_a_4080


def test_a_schedule_of_another_card_is_refused_before_it_is_compiled(on_a_4080, monkeypatch) -> None:
    monkeypatch.setattr("tl_attention.op.compiled.kernel_of", kernel_of)
    monkeypatch.setattr("tl_attention.compiler.generation.use_nvcc", lambda: pytest.fail("it was compiled"))
    q = torch.zeros(1, 2, 64, 64, dtype=torch.float16)
    with pytest.raises(InputError, match=r"^lowering: warp_specialized runs on sm_90a \(H100, H200\), not on sm_89"):
        attention(q, q, q, schedule="best")
