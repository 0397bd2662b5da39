"""Tests check the training beside SDPA's attentions: judgement, record, page and picture, and a tiny run on the CPU."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from conftest import ROOT
from matplotlib.axes import Axes

sys.path.append(str(ROOT / "examples"))

import measure
from measurements import training
from measurements.losses import BLOCK, MOST, SMOOTHED_OVER, TrainingRun, judged
from pages import training as page
from picture_text import faults
from pictures.style import SMALL, styled
from pictures.training import drawn as picture
from tiers import sampled
from transformer_block import PYTORCHS

from tl_attention.errors import InputError
from tl_attention.lab.measure.records import parse_line, problem_of
from tl_attention.problem.shape import AttentionShape

SHAPE = AttentionShape.parse("4,2/1,32,16", dtype="bfloat16", causal=True, lse=True)
STEPS = 60


def run(attention: str, seed: int, losses: list[float], **fields) -> TrainingRun:
    given = {
        "steps": len(losses),
        "block_s": (9.0, 5.0, 0.5, 0.25, 0.5),
        "versions": {"torch": "2"},
        "run": "now",
        "device": "H200",
    }
    return TrainingRun(attention, problem_of(SHAPE), 2, 1e-3, losses=tuple(losses), seed=seed, **given | fields)


def drawn(seed: int, ours: float = 1.0, **fields) -> list[TrainingRun]:
    """Makes attentions' losses that fall from 3 to 2, plus waves: cuDNN's is one wave from flash's, and ours `ours`."""
    flash = [2 + math.exp(-n / 20) + 0.1 * seed for n in range(STEPS)]
    wave = [1e-5 * n * (-1) ** n for n in range(1, STEPS + 1)]
    losses = {"ours": ours, "flash2": 0.0, "cudnn": 1.0}
    return [run(name, seed, [x + by * w for x, w in zip(flash, wave)], **fields) for name, by in losses.items()]


@pytest.mark.parametrize("ours", [0.0, 1.0, 1.98, -1.98])
def test_up_to_twice_the_difference_of_flash_and_cudnn_is_allowed(ours) -> None:
    found = judged([*drawn(1, ours), *drawn(2, ours)])
    assert [seed.ok for seed in found] == [True, True] and [seed.seed for seed in found] == [1, 2]
    assert (
        f"seed 1: ok: our loss is at most {abs(ours) / MOST:.2f} of the allowed distance from flash's"
        in found[0].verdict
    )
    # Of waves that cancel each other nothing is left of the means, but what is apart does not cancel.
    assert len(found[0].apart) == STEPS - SMOOTHED_OVER + 1
    assert found[0].apart[0] == pytest.approx(abs(ours) * 1e-5 * 10.5, abs=1e-12)
    assert found[0].spread == pytest.approx(0.1)


def test_more_is_not_even_at_one_step() -> None:
    runs = [*drawn(1), *drawn(2)]
    spoilt = list(runs[0].losses)
    # The 20 steps that end with step 30 have room for another 1.05e-5 x 20 a step, of which 19 steps later none is
    # left.
    spoilt[29] += 0.02
    found = judged([replace(runs[0], losses=tuple(spoilt)), *runs[1:]])
    assert found[0].outside == list(range(30, 50)) and not found[0].ok and found[1].ok
    assert found[0].verdict.startswith("seed 1: FAILED: at step 30 our loss is 0.00")
    assert "20 of 41 steps are too far" in found[0].verdict


def test_what_is_allowed_is_the_largest_difference_so_far_and_not_that_of_the_step() -> None:
    flash, cudnn = [2.0] * STEPS, [2.1] * SMOOTHED_OVER + [2.0] * (STEPS - SMOOTHED_OVER)
    late = [2.0] * SMOOTHED_OVER + [2.15] * (STEPS - SMOOTHED_OVER)
    others = [run(name, 2, [2.5] * STEPS) for name in ("ours", "flash2", "cudnn")]
    found = judged([run("ours", 1, late), run("flash2", 1, flash), run("cudnn", 1, cudnn), *others])
    assert not found[0].outside and found[0].allowed == pytest.approx([0.2] * 41)
    swapped = judged([run("ours", 1, cudnn), run("flash2", 1, flash), run("cudnn", 1, late), *others])
    assert swapped[0].outside[0] == SMOOTHED_OVER


def test_an_end_outside_of_the_seeds_range_fails() -> None:
    """Such an end fails whatever flash and cuDNN differ by."""
    flash, apart = [2.0] * STEPS, [2.2] * STEPS
    runs = [run("ours", 1, apart), run("flash2", 1, flash), run("cudnn", 1, apart)]
    others = [run(name, 2, [2.1] * STEPS) for name in ("ours", "flash2", "cudnn")]
    first, second = judged([*runs, *others])
    assert not first.outside and not first.ends_within and not first.ok and second.ok
    assert "the ends differ by 0.20000, OUTSIDE of the 0.1 that seeds differ by" in first.verdict


@pytest.mark.parametrize("broken", ["ours", "flash2", "cudnn"])
@pytest.mark.parametrize("kept", [0, 25])
def test_a_loss_that_is_not_finite_fails_and_is_shown(broken, kept) -> None:
    runs = [replace(r, losses=r.losses[:kept]) if r.attention == broken else r for r in drawn(1)] + drawn(2)
    first, second = judged(runs)
    assert first.verdict == f"seed 1: FAILED: the loss of {broken} is not finite at step {kept + 1}" and not first.ok
    assert second.ok or broken == "flash2"
    assert panels(runs)[0].get_title("left") == "seed 1, FAILED" and page.section(runs)


@pytest.mark.parametrize("runs, error", [
    ([], "training: no runs, expected one for each attention and seed"),
    (drawn(1)[:2], "training: seed 1 has flash2, ours, expected ours, flash2, cudnn"),
    (drawn(1) + drawn(1), "training: seed 1 has ours twice, expected the runs of one record"),
    (drawn(1) + drawn(2, run="later"), "training: runs of several models, expected one model, one number of steps"),
    ([run(n, 1, [1.0] * 19) for n in ("ours", "flash2", "cudnn")], "training: 19 steps, expected at least the 20"),
])  # fmt: skip
def test_what_cannot_be_judged_is_an_error(runs, error) -> None:
    with pytest.raises(InputError, match=error):
        judged(runs)


def test_a_line_gives_the_run_back_and_its_steps_per_second() -> None:
    before = drawn(1)[0]
    assert parse_line(TrainingRun, before.to_json().encode(), "here") == before
    assert before.steps_per_second == BLOCK / 0.5
    assert replace(before, block_s=(9.0, 5.0)).steps_per_second is None
    with pytest.raises(InputError, match="here: 'loss' is no field of a row"):
        parse_line(TrainingRun, b'{"loss": 1}', "here")


def panels(runs: list[TrainingRun]) -> list[Axes]:
    """Returns the panels of the picture: losses and distances of a seed after each other."""
    with styled():
        figure = picture(runs)
    assert faults(figure, SMALL) == []
    return figure.axes


def test_a_difference_of_nothing_is_drawn_below_the_axis() -> None:
    runs = [run(name, seed, [2.0 + seed] * STEPS) for seed in (1, 2) for name in ("ours", "flash2", "cudnn")]
    assert all(seed.ok for seed in judged(runs))
    assert all(line.get_ydata()[0] < axes.get_ylim()[0] for axes in panels(runs)[1::2] for line in axes.lines)


class Scaled(torch.autograd.Function):
    """This function has the same forward, but another gradient."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


def rounded(to: torch.dtype, scale: float = 1.0, gradient: float = 1.0):
    """Makes causal attention with weights rounded to a type, and with a fault in its scale or its gradient."""

    def attend(q, k, v):
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        with torch.autocast("cpu", enabled=False):
            scores = q.float() @ k.float().mT * (scale * q.shape[3] ** -0.5)
            scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), float("-inf"))
            weights = (scores - scores.amax(-1, keepdim=True)).exp()
            output = weights.to(to).float() @ v.float() / weights.sum(-1, keepdim=True)
        return Scaled.apply(output.to(q.dtype), gradient)

    return attend


SETTING = training.Setting(SHAPE, layers=2, steps=STEPS, rate=3e-3)


def tiny(**among) -> list[TrainingRun]:
    """Trains on the CPU."""
    return training.measure(SETTING, among, (1, 2), "cpu", {}, lambda run: None)


@pytest.fixture(scope="module")
def others() -> list[TrainingRun]:
    """Trains with stand-ins for flash and cuDNN: attentions that round otherwise."""
    return tiny(flash2=PYTORCHS, cudnn=rounded(torch.float32))


@pytest.mark.parametrize("to", sampled([torch.bfloat16, torch.float16], [torch.bfloat16]))
def test_an_attention_that_only_rounds_otherwise_is_good(others, to) -> None:
    found = judged([*others, *tiny(ours=rounded(to))])
    assert all(seed.ok for seed in found), [seed.verdict for seed in found]
    # The model has learnt, and from the same weights and tokens.
    assert all(seed.smooth["ours"][-1] < seed.smooth["ours"][0] - 0.3 for seed in found)
    assert all(1e-7 < seed.apart[-1] < 1e-2 for seed in found)


FAULTS = [{"scale": 1.01}, {"scale": 0.98}, {"gradient": 1.1}, {"gradient": 0.0}]


@pytest.mark.parametrize("fault", sampled(FAULTS, [{"scale": 1.01}]))
def test_a_wrong_attention_fails_for_each_seed(others, fault) -> None:
    found = judged([*others, *tiny(ours=rounded(torch.bfloat16, **fault))])
    assert not any(seed.ok for seed in found), [seed.verdict for seed in found]


def test_a_loss_that_is_not_finite_ends_the_record(others) -> None:
    runs = tiny(ours=lambda q, k, v: PYTORCHS(q, k, v) * float("nan"))
    assert [run.losses for run in runs] == [()] * 2
    assert judged([*others, *runs])[0].verdict == "seed 1: FAILED: the loss of ours is not finite at step 1"
    assert "a loss that is not finite" in training.summary(runs[0])


def test_blocks_are_timed_and_the_order_changes_with_the_seed(others) -> None:
    assert [run.attention for run in others] == ["flash2", "cudnn", "cudnn", "flash2"]
    assert all(len(run.block_s) == STEPS // BLOCK and run.steps_per_second > 0 for run in others)


def test_an_attention_that_does_not_run_is_named_before_anything_is_trained() -> None:
    def refuse(q, k, v):
        raise RuntimeError("No available kernel. Aborting execution.\nmore")

    with pytest.raises(InputError, match=r"^cudnn: No available kernel. Aborting execution., expected it to train$"):
        training.check_each_runs(SETTING, {"flash2": PYTORCHS, "cudnn": refuse}, "cpu")


@pytest.mark.gpu
def test_a_short_training_on_the_gpu_is_recorded(tmp_path) -> None:
    record = tmp_path / "record.jsonl"
    short = ["--seed", "1", "--seed", "2", "--steps", "30", "--batch", "2"]
    done = CliRunner().invoke(measure.main, ["training", "--output", str(record), *short])
    # So few steps may be judged either way.
    assert done.exit_code in (0, 1), done.stderr
    runs = page.read(record)
    assert len(runs) == 6 and all(len(run.losses) == 30 for run in runs)
