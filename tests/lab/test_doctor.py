"""`doctor` says what a machine has, and refuses a torch for CUDA 12 before anything is compiled."""

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, python
from mutations import shipped
from stand_in import toolkit, without_launcher

from tl_attention.compiler import generation, store, toolchain
from tl_attention.compiler.compile import compile_kernel
from tl_attention.errors import InputError
from tl_attention.lab.measure import doctor, machine
from tl_attention.lab.measure.machine import Gpu
from tl_attention.problem.card import CARDS
from tl_attention.problem.variant import Variant

SEED, VARIANT = shipped()["seed"], Variant(128, "float16")


def test_doctor_says_what_compiles_and_that_run_would_work() -> None:
    done = python("-m", "tl_attention", "doctor", cwd="/")
    assert done.returncode == 0, done.stderr
    for words in ("torch ", "TileLang      0.1.15", "nvcc ", "ptxas ", "compiles      yes", "cache ", "ready: "):
        assert words in done.stdout, done.stdout


@pytest.fixture
def quick(monkeypatch):
    """Leaves out the trial compilation, which takes seconds and has its own test above.

    TileLang looks for a C++ compiler only once, so its cache is cleared.
    """
    from tilelang.contrib.cc import get_cplus_compiler

    monkeypatch.setattr(doctor, "_trial", lambda nvcc: doctor.Fact("compiles", "not tried"))
    get_cplus_compiler.cache_clear()
    yield
    get_cplus_compiler.cache_clear()


@pytest.mark.parametrize(
    "missing, words",
    [
        (lambda patch: patch.setattr(toolchain, "_homes", lambda: iter(())), "nvcc: nvcc: none that can compile"),
        (lambda patch: patch.setitem(sys.modules, "tilelang", None), "TileLang: it cannot be imported"),
        (lambda patch: patch.setitem(sys.modules, "torch", None), "torch: torch cannot be imported"),
        (lambda patch: patch.setenv("PATH", "/nowhere"), "C++ compiler: nvcc needs one: apt-get install g++"),
        (lambda patch: patch.setenv("CXX", "/nowhere/icpx"), "C++ compiler: nvcc needs one"),
        (without_launcher, "launcher: launch/launcher.c is not built here"),
    ],
    ids=["nvcc", "TileLang", "torch", "C++ compiler", "CXX, which TileLang takes", "launcher"],
)
def test_doctor_fails_with_what_is_missing(missing, words, quick, cli, monkeypatch) -> None:
    missing(monkeypatch)
    result = cli("doctor")
    assert result.exit_code == 1 and f"error: {words}" in result.stderr, result.output
    assert "ready" not in result.stdout and toolchain.SEE_DOCTOR not in result.stderr


def test_doctor_shows_what_nvml_tells(quick, cli, monkeypatch) -> None:
    monkeypatch.setattr(doctor, "gpu", lambda: Gpu("NVIDIA H100", "580.1", "13.0", 700.0))
    result = cli("doctor")
    assert "580.1, runs CUDA up to 13.0, power limit 700 W" in result.stdout
    monkeypatch.setattr(doctor, "gpu", lambda: None)
    assert "driver        unknown: NVML does not answer" in cli("doctor").stdout


@pytest.mark.parametrize(
    "capability, fault", [((8, 6), ""), ((8, 7), "Orin has compute capability 8.7, expected one of 8.0")]
)
def test_doctor_takes_a_known_card_and_no_other(capability, fault, quick, cli, monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Orin")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    result = cli("doctor")
    assert f"GPU           Orin, compute capability 8.{capability[1]}" in result.stdout
    assert (f"error: GPU: device: {fault}" in result.stderr) if fault else ("error: GPU" not in result.stderr)


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_the_trial_is_of_the_card_at_hand(arch, monkeypatch) -> None:
    commands = []

    def run(command, **options):
        commands.append((command, Path(command[-1]).read_text()))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(doctor, "card_at_hand", lambda: CARDS[arch])
    monkeypatch.setattr(subprocess, "run", run)
    doctor._trial(toolchain.Nvcc(Path("/nvcc"), "PATH", "13.0.88", "13.0.88"))
    ((command, text),) = commands
    assert f"-arch={arch}" in command and "instruction/mma.h" in text and "wgmma" not in text


@pytest.mark.parametrize(
    "nvcc, driver, words",
    [
        ("13.0.88", "12.8", "install a driver for CUDA 13 or newer, which torch needs too"),
        ("14.0.1", "13.0", "pip install 'cuda-toolkit[cccl,crt,cudart,nvcc,nvvm]==13.0.*'"),
    ],
)
def test_machine_code_of_a_newer_cuda_than_the_drivers_is_a_fault(nvcc, driver, words, quick, cli, monkeypatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(doctor, "gpu", lambda: Gpu("NVIDIA H100", "570.1", driver, 700.0))
    monkeypatch.setattr(doctor, "visible_gpus", lambda: (("GPU-0", "NVIDIA H100", (9, 0)),))
    monkeypatch.setattr(toolchain, "chosen_nvcc", lambda cuda: toolchain.Nvcc(Path(), "PATH", nvcc, nvcc))
    result = cli("doctor")
    assert (
        result.exit_code == 1
        and f"the driver runs CUDA up to {driver}, not machine code of {nvcc[:4]}" in result.stderr
    )
    assert words in result.stderr


@pytest.fixture
def torch_for_cuda_12(monkeypatch) -> str:
    """Makes torch one for CUDA 12, and returns the one line that refuses it."""
    import torch

    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu128")
    return (
        "torch: 2.11.0+cu128 is for CUDA 12.8, expected one for CUDA 13 or newer: "
        "pip install --force-reinstall torch 'cuda-toolkit[cccl,crt,cudart,nvcc,nvvm]'"
    )


def test_a_torch_for_cuda_12_is_refused_before_anything_is_compiled_or_loaded(
    torch_for_cuda_12, cli, monkeypatch
) -> None:
    def fails(*args, **options):
        raise AssertionError("nothing may be asked for")

    for module, name in ((store, "read"), (generation, "generate"), (toolchain, "nvccs")):
        monkeypatch.setattr(module, name, fails)
    for asked in (lambda: compile_kernel(SEED, VARIANT), lambda: toolchain.use_nvcc().__enter__()):
        with pytest.raises(InputError) as error:
            asked()
        assert str(error.value) == torch_for_cuda_12
    for command in (["run", "seed"], ["bench"], ["warm", "seed"]):
        result = cli(*command)
        assert result.exit_code == 2 and result.stderr.endswith(f"error: {torch_for_cuda_12}\n"), command
        assert not result.stdout


def test_doctor_says_that_a_torch_for_cuda_12_is_refused_and_still_looks_at_the_rest(
    torch_for_cuda_12, quick, cli
) -> None:
    result = cli("doctor")
    assert (result.exit_code, result.stderr) == (1, f"error: {torch_for_cuda_12}\n")
    assert "torch         2.11.0+cu128, CUDA 12.8" in result.stdout and "ptxas" in result.stdout


def test_what_needs_no_compiler_runs_beside_a_torch_for_cuda_12(torch_for_cuda_12, cli) -> None:
    assert cli("check", "seed").exit_code == cli("list").exit_code == 0


def test_a_trial_that_fails_says_what_the_compiler_said(tmp_path) -> None:
    home = toolkit(tmp_path, "13.0.88", "13.0")
    (home / "bin/nvcc").write_text("#!/bin/sh\necho 'x.h(3): fatal error: y.h: No such file or directory'\nexit 1\n")
    fact = doctor._trial(toolchain.Nvcc(home, "PATH", "13.0.88", "13.0.88"))
    assert fact.fault.startswith("x.h(3): fatal error: y.h: No such file or directory; the toolkit may be incomplete")


def test_a_commit_is_changed_by_what_is_measured_and_names_the_first_file(tmp_path, monkeypatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        subprocess.run(["git", "-C", str(tmp_path), *who, *arguments], check=True, capture_output=True)

    # As the files of a checkout lie, with the room of MEASURED in it.
    assert machine.CHECKOUT == ROOT and all((ROOT / room).is_dir() for room in machine.MEASURED)
    monkeypatch.setattr(machine, "CHECKOUT", tmp_path)
    commit = machine.commit.__wrapped__
    assert commit() is None
    for name in ("schedules/best.yaml", "tools/make.py", "results/a.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("first")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    clean = commit()
    assert clean is not None and len(clean) == 12
    (tmp_path / "results/a.jsonl").write_text("a record more")
    (tmp_path / "carried").write_text("a folder that travels")
    assert commit() == clean
    (tmp_path / "tools/new.py").write_text("not added")
    assert commit() == f"{clean}, changed: tools/new.py"
    for name in ("tools/make.py", "schedules/best.yaml"):
        (tmp_path / name).write_text("second")
    git("add", ".")
    assert commit() == f"{clean}, changed: schedules/best.yaml"


@pytest.mark.parametrize("why", ["", "it is not built"])
@pytest.mark.parametrize("no_compiler", ["", "no nvcc"])
def test_doctor_says_what_computes_gradients(why, no_compiler, monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("tl_attention.op.trial.why_not", lambda *given, **options: why)
    monkeypatch.setattr("tl_attention.op.trial.cudnn_version", lambda: "9.19")
    monkeypatch.setattr("tl_attention.compiler.compile.why_none_is_made", lambda: no_compiler)
    cudnn, of_cudnn = ("", "not by cuDNN: it is not built") if why else ("cuDNN 9.19 where a rule names it, else ", "")
    [fact] = doctor._gradients()
    ships = " and its kernels ship" * bool(no_compiler)
    assert fact.value == f"by pair (dq, dkdv) where a rule names it{ships}, else {cudnn}FlashAttention-2"
    of_pair = "kernels that do not ship are not made: no nvcc" if no_compiler else ""
    assert fact.hint == "; ".join(filter(None, (of_cudnn, of_pair)))
