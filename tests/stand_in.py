"""Stands in for toolkits, compilers, their kernels and a GPU."""

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from on_cpu import launched, take_for_a_gpu

from tl_attention.codeproof.verdict import Verdict
from tl_attention.compiler.store import Finished
from tl_attention.compiler.toolchain import Nvcc
from tl_attention.lab.machine_code.sass import StaticReport
from tl_attention.lab.measure import device, gpu_worker, machine, peers, timing
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.measure.compilation import Compiled
from tl_attention.lab.measure.device import VisibleGpu, card_at_hand
from tl_attention.lab.measure.pool import CallFailed
from tl_attention.lab.measure.records import MATMUL
from tl_attention.lab.oracle.reference import ErrorReport
from tl_attention.op import compiled
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

GOOD = ErrorReport(1e-4, 1e-4, 2e-4, 2e-4, True)
BROKEN = {
    "unbuildable": Compiled(status="compile_error", error="nvcc said no"),
    "racing": Compiled(status="refused", error="mma0(1) does not wait for load_k(1)"),
}
# A finished kernel, to be kept and read: nothing loads it.
KERNEL = Finished(
    b"\x7fELF" + bytes(range(256)) * 100,
    "device\n",
    "host \u00e9\n",
    Verdict(("", "wait", "numbers: exponential") * 1000, (1, 2), "abc"),
)


def toolkit(folder: Path, version: str, headers: str | None = None, ptxas: bool = True) -> Path:
    """Makes a folder that answers as a CUDA toolkit of this version does."""
    (folder / "bin").mkdir(parents=True)
    for tool in ("nvcc", "ptxas") if ptxas else ("nvcc",):
        path = folder / "bin" / tool
        path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version[:4]}, V{version}'\n")
        path.chmod(0o755)
    if headers:
        major, minor = headers.split(".")
        (folder / "include").mkdir()
        (folder / "include/cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {major}0{minor}0\n")
    return folder


def without_launcher(patch: pytest.MonkeyPatch) -> None:
    """Has the launcher be as where its C was not built."""
    patch.delattr("tl_attention.launch._launcher")
    patch.setitem(sys.modules, "tl_attention.launch._launcher", None)


def code_of(candidate: Candidate) -> str:
    """Returns a fingerprint that schedules of one tile share."""
    return candidate.label[:9]


class Compilers:
    """These compilers answer as `compile_each` does, at once; `BROKEN` names what cannot be compiled."""

    def __init__(self, code: Callable[[Candidate], str] = code_of):
        self.code, self.ended = code, False

    def __call__(self, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, Compiled]]:
        try:
            for candidate in candidates:
                yield candidate, self.compiled(candidate)
        finally:
            self.ended = True

    def compiled(self, candidate: Candidate) -> Compiled:
        return BROKEN.get(candidate.name) or Compiled(self.code(candidate), StaticReport(200, 0, 1024))


class Gpu:
    """This GPU answers as the worker process does. `faults` maps (call, candidate's name) to what happens instead.

    `ms` gives the times of a candidate's calls. By default the matrix product takes half as long as the others.
    """

    def __init__(
        self, faults: dict[tuple[str, str], Any] | None = None, ms: Callable[[Candidate], float] | None = None
    ):
        self.faults = faults or {}
        self.ms = ms or (lambda candidate: 1.0 if candidate.name == MATMUL else 2.0)
        self.calls: list[tuple[str, str]] = []
        self.closed = self.by_batches = False

    def close(self) -> None:
        self.closed = True

    def named(self, call: str) -> list[str]:
        """Returns the candidates that a call was made for, in order."""
        return [name for made, name in self.calls if made == call]

    def call(self, function: Callable, *arguments: Any, timeout_s: float) -> Any:
        if function is gpu_worker.device_name:
            return "stand-in"
        if function is peers.available:
            return ["cudnn"]
        if function is gpu_worker.unload:
            return None
        if function is gpu_worker.forget_tensors:
            return self.calls.append((function.__name__, ""))
        candidate = arguments[0]
        self.calls.append((function.__name__, candidate.name))
        fault = self.faults.get((function.__name__, candidate.name))
        if isinstance(fault, CallFailed):
            raise fault
        if function is gpu_worker.verify:
            return fault or (GOOD, True)
        if function is gpu_worker.verify_some_rows:
            return fault or GOOD
        if function is gpu_worker.load:
            self.by_batches = (*arguments, None)[2]
            return 4 if self.by_batches else 1
        if function is gpu_worker.sample:
            ms = self.ms(candidate)
            return [ms] if self.by_batches else [ms, 1.5 * ms, ms, ms], 1600
        return None


@pytest.fixture
def on_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this machine look as if it had compilers and an idle GPU, without pauses."""
    monkeypatch.setattr(timing, "PAUSE_S", 0.0)
    for batches in (timing.TimedBatch, timing.GraphBatch):
        monkeypatch.setattr(batches, "pause_s", 0.0)
    monkeypatch.setattr(machine, "chosen_nvcc", lambda cuda: Nvcc(Path(), "PATH", "13.0.88", "13.0.89"))
    monkeypatch.setattr(machine, "gpu", lambda: machine.Gpu("stand-in", "580.1", "13.0", 700.0))
    monkeypatch.setattr(machine, "commit", lambda: "c0f9511a2b3c")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Yields a function that makes only those GPUs visible that it is given; there is none before."""

    def stand(*found: VisibleGpu) -> None:
        monkeypatch.setattr(device, "visible_gpus", lambda: found)
        card_at_hand.cache_clear()

    stand()
    yield stand
    card_at_hand.cache_clear()


@pytest.fixture
def launched_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Variant, dict[str, Any]]]]:
    """Yields (variant, arguments) of the launches on CPU tensors, taken for those of a GPU with 114 SMs."""
    asked: list[tuple[Variant, dict[str, Any]]] = []

    def kernel_of(schedule: Schedule, variant: Variant) -> Any:
        return launched(schedule, variant, lambda **arguments: asked.append((variant, arguments)))

    sms_of = compiled.sms_of
    take_for_a_gpu(monkeypatch, kernel_of)
    monkeypatch.setattr(compiled, "sms_of", sms_of)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=114))
    sms_of.cache_clear()
    yield asked
    sms_of.cache_clear()
