"""Tests check which nvcc is chosen, that each has its own cache, and what `doctor` says where there is none."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from mutations import shipped
from stand_in import toolkit
from tiers import exhaustive

from tl_attention.compiler import toolchain
from tl_attention.errors import InputError
from tl_attention.problem.variant import Variant

SEED, VARIANT = shipped()["seed"], Variant(128, "float16")


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Gives a function that says what a machine has: {place: toolkit's folder}."""

    def have(**homes: Path) -> None:
        named = [(source.replace("_", " "), home) for source, home in homes.items()]
        monkeypatch.setattr(toolchain, "_homes", lambda: iter(named))

    return have


def test_the_first_of_torchs_release_is_chosen_and_without_one_the_first(places, tmp_path) -> None:
    packages = toolkit(tmp_path / "a", "13.2.86", "13.2")
    system = toolkit(tmp_path / "b", "13.0.88", "13.0")
    places(packages=packages, PATH=system)
    assert toolchain.chosen_nvcc("13.2").source == "packages" and toolchain.chosen_nvcc("13.0").source == "PATH"
    assert toolchain.chosen_nvcc(None).version == toolchain.chosen_nvcc("13.1").version == "13.2.86"
    assert toolchain.chosen_nvcc("13.0").ptxas == "13.0.88" and toolchain.chosen_nvcc("13.0").release == "13.0"


def test_a_folder_that_two_places_name_is_asked_once(places, tmp_path) -> None:
    home = toolkit(tmp_path / "a", "13.0.88", "13.0")
    (tmp_path / "link").symlink_to(home)
    places(CUDA_HOME=tmp_path / "link", PATH=home)
    assert [nvcc.source for nvcc in toolchain.nvccs()] == ["CUDA HOME"]


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda folder: toolkit(folder, "13.5.37", "13.0"), "its headers are of CUDA 13.0, its nvcc of 13.5.37"),
        (lambda folder: toolkit(folder, "13.5.37"), "it has no include/cuda_runtime_api.h"),
        (lambda folder: toolkit(folder, "13.5.37", "13.5", ptxas=False), "it has no ptxas"),
    ],
)
def test_a_toolkit_that_cannot_compile_is_passed_over_and_named_where_it_is_the_only_one(
    make, words, places, tmp_path
) -> None:
    broken, whole = make(tmp_path / "broken"), toolkit(tmp_path / "whole", "13.0.88", "13.0")
    places(packages=broken, PATH=whole)
    assert toolchain.chosen_nvcc("13.5").home == whole.resolve()
    places(packages=broken)
    with pytest.raises(InputError) as error:
        toolchain.chosen_nvcc("13.0")
    assert words in str(error.value)
    assert "pip install 'cuda-toolkit[cccl,crt,cudart,nvcc,nvvm]==13.0.*'" in str(error.value)


def test_what_does_not_answer_is_no_nvcc(places, tmp_path) -> None:
    home = toolkit(tmp_path / "a", "13.0.88", "13.0")
    (home / "bin/nvcc").write_text("#!/bin/sh\nexit 1\n")
    places(packages=home, PATH=tmp_path / "nowhere")
    assert not list(toolchain.nvccs())
    with pytest.raises(InputError, match="none that can compile in the Python packages, CUDA_HOME, the PATH and"):
        toolchain.chosen_nvcc(None)


def test_each_compiler_has_a_cache_of_its_own_and_tilelang_is_left_as_it_was(places, tmp_path) -> None:
    from tilelang.contrib import nvcc as tilelang_nvcc
    from tilelang.env import env

    before = tilelang_nvcc.CUDA_HOME, env.TILELANG_CACHE_DIR
    folders = []
    for version in ("13.0.88", "13.5.37"):
        home = toolkit(tmp_path / version, version, version[:4])
        places(packages=home)
        with toolchain.use_nvcc() as nvcc:
            assert tilelang_nvcc.get_nvcc_compiler() == str(home.resolve() / "bin/nvcc")
            assert Path(env.TILELANG_CACHE_DIR).parents[1] == Path(before[1]) and nvcc.version == version
            folders.append(env.TILELANG_CACHE_DIR)
        assert before == (tilelang_nvcc.CUDA_HOME, env.TILELANG_CACHE_DIR)
    assert len(set(folders)) == 2


def test_a_compilation_that_fails_leaves_tilelang_as_it_was() -> None:
    from tilelang.contrib import nvcc as tilelang_nvcc
    from tilelang.env import env

    before = tilelang_nvcc.CUDA_HOME, env.TILELANG_CACHE_DIR
    with pytest.raises(ZeroDivisionError), toolchain.use_nvcc():
        1 / 0
    assert before == (tilelang_nvcc.CUDA_HOME, env.TILELANG_CACHE_DIR)


def test_a_cache_that_cannot_be_written_is_replaced_for_the_time_of_a_compilation(
    places, tmp_path, monkeypatch
) -> None:
    from tilelang.env import env

    places(packages=toolkit(tmp_path / "a", "13.0.88", "13.0"))
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("TILELANG_CACHE_DIR", str(tmp_path / "a file/cache"))
    with toolchain.use_nvcc():
        passing = Path(env.TILELANG_CACHE_DIR)
        assert passing.is_dir() and not passing.is_relative_to(tmp_path)
    assert not passing.exists() and Path(env.TILELANG_CACHE_DIR) == tmp_path / "a file/cache"


@exhaustive
def test_tilelang_can_be_imported_where_its_cache_cannot_be_written(tmp_path) -> None:
    (tmp_path / "a file").write_text("")
    place = str(tmp_path / "a file/cache")
    script = (
        "import os; from tl_attention.compiler import toolchain\n"
        "with toolchain.use_nvcc(): import tilelang\n"
        "print(os.environ['TILELANG_CACHE_DIR'], toolchain.cache_folder(), sep='\\n')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"TILELANG_CACHE_DIR": place, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0 and done.stdout.splitlines() == [place] * 2, done.stderr


def test_the_cache_and_its_switches_are_tilelangs_whether_it_is_imported_or_not(monkeypatch) -> None:
    from tilelang.env import env

    def both() -> list[tuple[Path, bool]]:
        found = [(toolchain.cache_folder(), toolchain.cache_enabled())]
        with monkeypatch.context() as patch:
            patch.setattr(toolchain, "_env", lambda: None)
            return [*found, (toolchain.cache_folder(), toolchain.cache_enabled())]

    monkeypatch.delenv("TILELANG_CACHE_DIR", raising=False)
    monkeypatch.delenv("TILELANG_DISABLE_CACHE", raising=False)
    assert both() == [(Path.home() / ".tilelang/cache", True)] * 2
    monkeypatch.setenv("TILELANG_CACHE_DIR", "/elsewhere")
    for value in ("1", "True", "on"):
        monkeypatch.setenv("TILELANG_DISABLE_CACHE", value)
        assert both() == [(Path("/elsewhere"), False)] * 2
    monkeypatch.setenv("TILELANG_DISABLE_CACHE", "0")
    assert both() == [(Path("/elsewhere"), True)] * 2
    # What a program tells TileLang itself.
    env.disable_cache()
    try:
        assert not toolchain.cache_enabled()
    finally:
        env.enable_cache()


def test_flags_that_the_environment_adds_have_a_cache_of_their_own(monkeypatch) -> None:
    nvcc = toolchain.Nvcc(Path("/cuda"), "PATH", "13.0.88", "13.0.89")
    for variable in toolchain.FLAGS:
        monkeypatch.delenv(variable, raising=False)
    plain = nvcc.cache
    found = {plain}
    for variable, flags in itertools.product(toolchain.FLAGS, ("-G", "-lineinfo")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, flags)
            found.add(nvcc.cache)
    assert plain == "nvcc-13.0.88-ptxas-13.0.89" and len(found) == 5
