"""The examples run as they are on a GPU; on the CPU they run with the fp64 reference as kernels, card by card."""

import sys
from collections.abc import Callable
from importlib import import_module
from itertools import product

import pytest
import torch
from conftest import ROOT, python
from gradients import flash_on_cpu
from on_cpu import Kernels, on_cpu
from tiers import exhaustive, sampled

from tl_attention.kernels.preflight import check_limits
from tl_attention.kernels.registry import lowering_of
from tl_attention.op import checks
from tl_attention.problem.card import CARDS, HOPPER
from tl_attention.program.planned import Planned

__all__ = ["flash_on_cpu", "on_cpu"]
NAMES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "common")
# What an example needs besides, as a marker.
MARKS = dict.fromkeys(("hugging_face_model", "padded_model", "server"), pytest.mark.transformers)
EXAMPLES = [pytest.param(name, marks=MARKS.get(name, ())) for name in NAMES]
# Of an example that takes long.
FEWER = {"transformer_block": {"steps": 2}, "server": {"number": 6}}
# One has a model and its training in it, one a scheduler.
LONG = {"transformer_block": 90, "server": 200}
WITHOUT_LONG = [pytest.param(name, marks=exhaustive if name in FEWER else MARKS.get(name, ())) for name in NAMES]


@pytest.fixture(autouse=True)
def beside_each_other(monkeypatch) -> None:
    """Makes the examples import what they share as scripts do."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_says_what_it_shows(name) -> None:
    assert len((ROOT / f"examples/{name}.py").read_text().splitlines()) <= LONG.get(name, 40)
    assert import_module(name).__doc__


# Of the one that trains `make test` runs two steps, below, as on another card.
@pytest.mark.parametrize("name", WITHOUT_LONG)
def test_an_example_is_right_if_kernels_are(name, on_cpu, flash_on_cpu, capsys) -> None:
    torch.manual_seed(5)
    import_module(name).main("cpu")
    assert "largest difference" in capsys.readouterr().out


@exhaustive
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fails_if_a_kernel_is_wrong(name, on_cpu, flash_on_cpu) -> None:
    # The more keys there are the more: of several parts each is wrong in another way.
    on_cpu.fault = lambda tensors: tensors.get("Merged", tensors["Output"]).add_(tensors["K"].shape[2] / 1000)
    torch.manual_seed(5)
    with pytest.raises(AssertionError):
        import_module(name).main("cpu")


@pytest.fixture
def on_card(monkeypatch, on_cpu, flash_on_cpu) -> Callable[[str, str], Kernels]:
    """Gives a function that runs an example as on a GPU of this arch, and returns the kernels that it asked for.

    The card can have each of these kernels.
    """

    def run(name: str, arch: str) -> Kernels:
        card, example, is_available = CARDS[arch], import_module(name), torch.cuda.is_available

        def main(device: str) -> None:
            # PyTorch's own code asks too, and then for the driver.
            monkeypatch.setattr(torch.cuda, "is_available", is_available)
            example.main("cpu", **FEWER.get(name, {}))

        monkeypatch.setattr(checks, "checked_card", lambda device: card)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: card.capability)
        torch.manual_seed(5)
        import_module("common").on_a_gpu(main)
        for schedule, variant in on_cpu.asked:
            assert variant.arch == arch
            check_limits(Planned(schedule), variant.head_size, card)
            lowering_of(schedule).check_variant(schedule, variant)
        return on_cpu

    return run


# The others' kernels do not cap scores, and have no packed sequences.
ONLY_HOPPER = "window_softcap_sinks"
OTHER_CARDS = [arch for arch in CARDS if arch != HOPPER.arch]
ELSEWHERE = [name for name in NAMES if name not in (ONLY_HOPPER, "packed_batch", *MARKS)]


@pytest.mark.parametrize("name,arch", sampled(product(ELSEWHERE, OTHER_CARDS), [("grouped_heads", "sm_86")]))
def test_an_example_runs_on_every_card_that_has_a_schedule_for_it(name, arch, on_card, capsys) -> None:
    assert on_card(name, arch).asked
    assert "largest difference" in capsys.readouterr().out


@pytest.mark.parametrize("arch", OTHER_CARDS)
def test_where_no_schedule_is_for_the_card_an_example_says_so_in_one_line(arch, on_card, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        on_card(ONLY_HOPPER, arch)
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out and said.err.count("\n") == 1
    words = f"error: attention: no default schedule serves {CARDS[arch]}, head_dim 64, "
    assert said.err.startswith(words) and "a schedule by its name" in said.err


def test_without_a_gpu_an_example_says_so_in_one_line() -> None:
    done = python(f"examples/{NAMES[0]}.py", CUDA_VISIBLE_DEVICES="")
    words = "error: torch sees no CUDA GPU, which this example needs\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", words)


def test_without_transformers_its_example_says_what_to_install_in_one_line(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit) as ended:
        import_module("common").on_a_gpu(import_module("hugging_face_model").main)
    said = capsys.readouterr()
    assert ended.value.code == 2 and not said.out and said.err.count("\n") == 1
    assert said.err.startswith("error: transformers: ") and "pip install 'tl-attention[transformers]'" in said.err


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name) -> None:
    done = python(f"examples/{name}.py")
    assert done.returncode == 0 and "largest difference" in done.stdout, done.stderr
