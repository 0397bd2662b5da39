"""A version of cuDNN that no record covers is tried once: tests use stand-ins on the CPU, and a made-up version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from gradients import Operators, operators
from on_cpu import Kernels, on_cpu
from test_backward import drawn
from torch import Tensor

from tl_attention import attention
from tl_attention.op import aten, trial
from tl_attention.op.backward import force_operator
from tl_attention.op.trial import TRIED, why_not
from tl_attention.schedule.files.backward import CUDNN, FLASH2

__all__ = ["on_cpu", "operators"]
CPU = torch.device("cpu")
# Small ones in the place of those that are tried on a GPU; cuDNN is called twice for each.
SMALL = ((24, 24, 2, 2, 64, True, -5.0), (16, 9, 2, 1, 64, False, 5.0))
WHOLE = 2 * len(SMALL)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, operators: Operators, tmp_path: Path) -> Path:
    """Makes cuDNN one that nobody knows, and returns the folder of outcomes, which is not there yet."""
    monkeypatch.setattr(trial, "TRIED", SMALL)
    monkeypatch.setattr(trial, "cudnn_version", lambda: "9.99.0")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100/80 GB")
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TILELANG_DISABLE_CACHE", raising=False)
    return tmp_path / "cache/tl_attention-cudnn"


def tries(operators: Operators, **options) -> int:
    """Asks whether cuDNN may be taken, which it may, in a process of its own; returns how often cuDNN was called."""
    trial._outcomes.clear()
    before = operators.taken.count(CUDNN)
    assert why_not(CPU, (), **options) == ""
    return operators.taken.count(CUDNN) - before


def test_an_unknown_version_is_tried_once_and_its_outcome_is_kept(cache: Path, operators: Operators) -> None:
    assert tries(operators) == WHOLE
    assert why_not(CPU, ()) == "" and operators.taken.count(CUDNN) == WHOLE
    assert tries(operators) == tries(operators, may_run=False) == 0
    assert [path.suffix for path in cache.iterdir()] == [".json"]


@pytest.mark.parametrize("what", ["cuDNN", "torch", "card"])
def test_of_another_machine_no_outcome_is_read(what, cache: Path, operators: Operators, monkeypatch) -> None:
    assert tries(operators) == WHOLE
    if what == "torch":
        monkeypatch.setattr(torch, "__version__", "2.99.0")
    else:
        where, name = (trial, "cudnn_version") if what == "cuDNN" else (torch.cuda, "get_device_name")
        monkeypatch.setattr(where, name, lambda *of: "9.99.1")
    assert tries(operators) == WHOLE and tries(operators) == 0 and len([*cache.iterdir()]) == 2


def test_a_known_version_needs_no_trial(cache: Path, operators: Operators) -> None:
    assert why_not(CPU, ("9.19.0", "9.99.0"), may_run=False) == ""
    assert not operators.taken and not cache.exists()


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"null", b"\xff", b'{"outcome": 1}', b'{"outcome": ""}', b'{"else": "right"}'], ids=str
)
def test_a_damaged_file_means_a_trial_and_is_written_again(text, cache: Path, operators: Operators) -> None:
    tries(operators)
    (file,) = cache.iterdir()
    file.write_bytes(text)
    assert tries(operators) == WHOLE and tries(operators) == 0


def damaged(cache: Path, how: str) -> None:
    if how == "a folder in the file's place":
        trial._outcomes.clear()
        why_not(CPU, ())
        (file,) = cache.iterdir()
        file.unlink()
        file.mkdir()
    else:
        # The folder of the cache, or that of outcomes.
        place = cache.parent if how == "no cache" else cache
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("a file")


@pytest.mark.parametrize("how", ["no cache", "no folder", "a folder in the file's place"])
def test_what_cannot_be_written_is_tried_by_each_process(how, cache: Path, operators: Operators) -> None:
    damaged(cache, how)
    assert tries(operators) == tries(operators) == WHOLE
    assert why_not(CPU, ()) == "" and tries(operators) == WHOLE


def test_where_the_cache_is_off_nothing_is_written(cache: Path, operators: Operators, monkeypatch) -> None:
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    assert tries(operators) == WHOLE and not cache.exists() and tries(operators) == WHOLE


def test_no_trial_runs_where_it_may_not(cache: Path, operators: Operators) -> None:
    assert why_not(CPU, (), may_run=False).startswith("cuDNN 9.99.0 has not been tried yet: ")
    assert not operators.taken and not cache.exists()
    # Nor is that an outcome.
    assert why_not(CPU, ()) == "" and len(operators.taken) == 2 * WHOLE


def raising(error: Exception) -> Callable[[tuple[Tensor, ...]], None]:
    def spoil(gradients: tuple[Tensor, ...]) -> None:
        raise error

    return spoil


FIRST = "24 queries, 24 keys, head_dim 64, LSE near -5"
# What a wrong cuDNN does, from which of the trial's calls on, and the outcome.
WRONG: dict[str, tuple[Callable[[tuple[Tensor, ...]], object], int, str]] = {
    "another dQ": (lambda g: g[0].mul_(1.1), 1, f"gives another dQ at {FIRST}"),
    "a head of dK": (lambda g: g[1][0, 0].zero_(), 1, f"gives another dK at {FIRST}"),
    "a NaN": (lambda g: g[2][1, 0, 0].fill_(torch.nan), 1, f"gives a NaN in dV at {FIRST}"),
    "infinite": (lambda g: g[0][0, 0, 0].fill_(torch.inf), 1, f"gives a NaN in dQ at {FIRST}"),
    "an error": (raising(RuntimeError("no plan\nand more")), 1, f"says 'no plan' at {FIRST}"),
    "rows alone": (lambda g: g[0].zero_(), 2, f"gives another dQ at {FIRST}"),
    "the last": (lambda g: g[2].zero_(), WHOLE, "gives another dV at 16 queries, 9 keys, head_dim 64"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_cudnn_is_refused_in_words_and_for_good(name, cache: Path, operators: Operators) -> None:
    spoil, first, words = WRONG[name]
    operators.fault = lambda gradients: spoil(gradients) if operators.taken.count(CUDNN) >= first else None
    said = why_not(CPU, ())
    assert said.startswith(f"cuDNN 9.99.0 {words}") and operators.taken.count(CUDNN) == first
    trial._outcomes.clear()
    operators.fault = lambda gradients: None
    assert why_not(CPU, ()) == said and operators.taken.count(CUDNN) == first


def test_that_memory_is_full_is_no_outcome(cache: Path, operators: Operators) -> None:
    operators.fault = raising(torch.OutOfMemoryError("CUDA out of memory"))
    assert why_not(CPU, ()) == "there is no memory to try cuDNN 9.99.0"
    operators.fault = lambda gradients: None
    assert why_not(CPU, ()) == "" and len([*cache.iterdir()]) == 1


def test_a_call_takes_what_the_trial_allows(cache: Path, operators: Operators, on_cpu: Kernels) -> None:
    for spoil, operator in ((lambda g: g[0].zero_(), FLASH2), (lambda g: None, CUDNN)):
        trial._outcomes.clear()
        for kept in cache.glob("*"):
            kept.unlink()
        operators.fault = spoil
        *inputs, grad = drawn((1, 2, 2, 65, 65, 64), "bhsd")
        with force_operator():
            attention(*inputs).backward(grad)
            operators.taken.clear()
            attention(*inputs).backward(grad)
        assert operators.taken == [operator]


def test_without_a_cudnn_or_its_operator_none_is_tried(cache: Path, operators: Operators, monkeypatch) -> None:
    monkeypatch.setattr(trial, "cudnn_version", lambda: "")
    assert why_not(CPU, ("9.19.0",)) == "torch has no cuDNN"
    monkeypatch.setattr(aten, "lacking", lambda operator: f"no {operator}")
    assert why_not(CPU, ("",)) == "no cudnn" and not operators.taken


@pytest.mark.parametrize("number, version", [(91900, "9.19.0"), (90801, "9.8.1"), (None, "")])
def test_versions_are_read(number, version, monkeypatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: number)
    trial.cudnn_version.cache_clear()
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    assert trial.cudnn_version() == (f"{version} with torch 2.11" if version else "")
    trial.cudnn_version.cache_clear()


def test_all_rows_of_an_input_have_its_lse() -> None:
    """That is what cuDNN was wrong with, and what an input has to have for the trial to see it."""
    for *sizes, causal, level in TRIED:
        q, k, *_ = trial.inputs(*sizes, level, CPU)
        scores = sizes[4] ** -0.5 * q.float() @ k.float().repeat_interleave(sizes[2] // sizes[3], dim=1).mT
        seen = torch.ones_like(scores[0, 0], dtype=torch.bool).tril() if causal else True
        lse = scores.masked_fill(~torch.as_tensor(seen), float("-inf")).logsumexp(dim=3)
        assert ((lse - level).abs() < 15).all(), (lse.min(), lse.max())
