"""Tests check a process's first kernel: what is imported if the store has it, and how kernels get there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT
from mutations import shipped
from submissions import INFERRED
from tiers import exhaustive, sampled

from tl_attention.compiler import compile as compilation
from tl_attention.compiler import generation, store, toolchain
from tl_attention.compiler.compile import compile_kernel, store_file
from tl_attention.compiler.store import Finished
from tl_attention.errors import ScheduleRefused
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

SEED, VARIANT = shipped()["seed"], Variant(128, "float16")
# What a kernel that is in the store needs of the proof: its verdict.
OF_THE_PROOF = {"tl_attention.codeproof", "tl_attention.codeproof.verdict"}

FIRST_CALL = """
import json, sys
import torch
{before}
from tl_attention import attention
from tl_attention.op.compiled import kernel_of, schedule_of
from tl_attention.problem.variant import Variant

kernel = kernel_of(schedule_of("seed", None, None), Variant(128, "float16"))
modules = sorted(sys.modules)
x = torch.zeros(1, 2, 64, 128, dtype=torch.float16)
try:
    kernel(Q=x, K=x, V=x, Output=x, softmax_scale=1.0, group=1)
    error = ""
except ValueError as failed:
    error = str(failed)
{after}
facts = dict(modules=modules, error=error, fingerprint=kernel.fingerprint, digest=kernel.verdict.digest)
print(json.dumps(facts | dict(shared_bytes=kernel.shared_bytes)))
"""
# After a kernel from the store, TileLang can still be imported, and compile.
THEN_ANEW = """
from tl_attention.compiler.generation import generate
assert generate(schedule_of("seed", None, None), kernel.variant, kernel.parameters).source == kernel.source
assert "tilelang" in sys.modules
"""


def environment(root: Path) -> dict[str, str]:
    return os.environ | {"TILELANG_CACHE_DIR": str(root), "PYTHONPATH": str(ROOT)}


def start(root: Path, before: str = "", after: str = "") -> subprocess.Popen:
    """Starts a new process that calls a kernel once, with this cache."""
    return subprocess.Popen(
        [sys.executable, "-c", FIRST_CALL.format(before=before, after=after)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(root),
    )


def facts_of(process: subprocess.Popen) -> dict[str, Any]:
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.fixture
def compiled() -> Finished:
    """Returns the seed's kernel, as the cache of this machine has it."""
    kernel = compile_kernel(SEED, VARIANT)
    found = store.read(store_file(SEED, VARIANT))
    assert found is not None and found.source == kernel.source
    return found


@pytest.fixture
def file(compiled, tmp_path, monkeypatch) -> Path:
    """Returns where the seed's kernel belongs in an empty store, beside links to what TileLang compiled before."""
    own, root = toolchain.cache_folder(), tmp_path / "cache"
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(root))
    file = store_file(SEED, VARIANT)
    file.parent.mkdir(parents=True)
    beside = root / toolchain.chosen_nvcc(torch.version.cuda).cache / toolchain.FOLDER
    beside.mkdir(parents=True, mode=0o700)
    for known in (own / beside.relative_to(root)).iterdir():
        (beside / known.name).symlink_to(known)
    return file


def root_of(file: Path) -> Path:
    return file.parents[1]


@pytest.fixture
def generated(compiled, monkeypatch) -> list[Schedule]:
    """Returns a list that gets each schedule for which this process asks TileLang for a kernel: the seed's is there."""
    asked: list[Schedule] = []
    generate = generation.generate

    def noted(schedule: Schedule, *rest: Any) -> Finished:
        asked.append(schedule)
        return compiled if schedule == SEED else generate(schedule, *rest)

    monkeypatch.setattr(generation, "generate", noted)
    return asked


def test_a_finished_kernel_is_loaded_without_tilelang_and_without_the_proof(compiled, file) -> None:
    store.keep(file, compiled)
    facts = facts_of(start(root_of(file)))
    foreign = {name.partition(".")[0] for name in facts["modules"]}
    assert not foreign & {"tilelang", "tvm", "tvm_ffi", "click", "rich", "pebble"}
    assert {name for name in facts["modules"] if name.startswith("tl_attention.codeproof")} == OF_THE_PROOF
    assert not [name for name in facts["modules"] if name.startswith("tl_attention.") and name.endswith(".kernel")]
    assert {"tl_attention.compiler.generation", "tl_attention.program.derivation"}.isdisjoint(facts["modules"])
    # It is the launcher that asks for a GPU.
    assert facts["error"] == "attention: Q has DLPack device type 1, expected 2"
    here = compile_kernel(SEED, VARIANT)
    assert (facts["fingerprint"], facts["digest"]) == (here.fingerprint, here.verdict.digest)
    assert facts["shared_bytes"] == here.shared_bytes > 0


@exhaustive
def test_after_it_tilelang_compiles_too(compiled, file) -> None:
    store.keep(file, compiled)
    assert "tilelang" not in facts_of(start(root_of(file), after=THEN_ANEW))["modules"]


@exhaustive
def test_it_is_loaded_beside_tilelang_too(compiled, file) -> None:
    store.keep(file, compiled)
    facts = facts_of(start(root_of(file), before="import tilelang"))
    assert "expected 2" in facts["error"] and "tl_attention.compiler.generation" not in facts["modules"]


@exhaustive
def test_processes_that_fill_the_same_entry_at_once_all_have_the_kernel_and_leave_one(file) -> None:
    found = [facts_of(process) for process in [start(root_of(file)) for _ in range(2)]]
    assert all("expected 2" in facts["error"] and "tilelang" in facts["modules"] for facts in found)
    assert [*file.parent.iterdir()] == [file]
    finished = store.read(file)
    assert finished is not None and {facts["digest"] for facts in found} == {finished.verdict.digest}


BAD: dict[str, Callable[[Finished, Path], None]] = {
    "truncated": lambda kernel, file: file.write_bytes(file.read_bytes()[:-1]),
    "without the proof's verdict": lambda kernel, file: store.keep(file, replace(kernel, verdict=None)),
}


@pytest.mark.parametrize("name", sampled(BAD, ["truncated"]))
def test_what_cannot_be_run_is_made_again_and_replaced(name, compiled, file, generated) -> None:
    store.keep(file, compiled)
    BAD[name](compiled, file)
    assert compile_kernel(SEED, VARIANT).verdict == compiled.verdict
    assert generated == [SEED] and store.read(file) == compiled
    assert compile_kernel(SEED, VARIANT).source == compiled.source
    assert len(generated) == 1


def test_a_store_that_cannot_be_written_costs_time_alone(file, generated) -> None:
    file.parent.rmdir()
    file.parent.write_text("")
    for number in (1, 2):
        assert compile_kernel(SEED, VARIANT).verdict is not None
        assert len(generated) == number


def test_where_tilelangs_cache_is_switched_off_nothing_is_kept_or_believed(
    compiled, file, generated, monkeypatch
) -> None:
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
    compile_kernel(SEED, VARIANT)
    assert not [*file.parent.iterdir()]
    store.keep(file, compiled)
    compile_kernel(SEED, VARIANT)
    assert len(generated) == 2


# Softmax before the rescale of the block before: scores_scale is overwritten while it is needed.
UNSAFE = SEED.model_copy(update={"order": (-1, 0, 1, 2, -1, 3)})


def test_a_schedule_that_is_refused_leaves_nothing(file, monkeypatch) -> None:
    with pytest.raises(ScheduleRefused, match="overwrites scores_scale"):
        compile_kernel(UNSAFE, VARIANT)

    def refuse(*read: object) -> None:
        raise ScheduleRefused("the generated code is not safe")

    monkeypatch.setattr(generation, "check_generated", refuse)
    for _ in range(2):
        with pytest.raises(ScheduleRefused, match="the generated code is not safe"):
            compile_kernel(SEED, VARIANT)
    assert not [*file.parent.iterdir()]


def test_a_schedule_without_a_program_has_no_verdict(file, generated) -> None:
    made = [compile_kernel(INFERRED, VARIANT) for _ in range(2)]
    assert generated == [INFERRED] and [kernel.verdict for kernel in made] == [None, None]


def test_another_compiler_makes_it_again_beside_the_first_ones(compiled, file, generated, monkeypatch) -> None:
    store.keep(file, compiled)
    other = replace(toolchain.chosen_nvcc(torch.version.cuda), ptxas="13.0.89")
    monkeypatch.setattr(compilation, "chosen_nvcc", lambda cuda: other)
    compile_kernel(SEED, VARIANT)
    assert generated == [SEED] and len([*file.parent.iterdir()]) == 2


def test_where_tilelang_is_not_any_makers_kernel_is_taken(compiled, file, generated, monkeypatch) -> None:
    store.keep(file, compiled)
    other = replace(toolchain.chosen_nvcc(torch.version.cuda), ptxas="13.0.89")
    monkeypatch.setattr(compilation, "chosen_nvcc", lambda cuda: other)
    monkeypatch.setattr(compilation, "tilelang_folder", lambda: None)
    assert compile_kernel(SEED, VARIANT).source == compiled.source and not generated
    assert [*file.parent.iterdir()] == [file]


def test_where_no_compiler_is_any_makers_kernel_is_taken(compiled, file, generated, monkeypatch) -> None:
    monkeypatch.setattr(toolchain, "_homes", lambda: iter(()))
    with pytest.raises(toolchain.NoCompiler, match="^nvcc: none that can compile in .*: pip install"):
        generation.use_nvcc().__enter__()
    store.keep(file, compiled)
    assert compile_kernel(SEED, VARIANT).source == compiled.source and not generated
