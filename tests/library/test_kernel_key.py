"""A finished kernel's key changes with what a call decides, its maker with what else makes it, neither otherwise."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import python
from mutations import shipped
from test_rooms import MODULES, imported
from tiers import sampled

from tl_attention.compiler import store as module
from tl_attention.compiler import toolchain
from tl_attention.compiler.store import (
    MAKING,
    PACKAGE,
    SOURCES,
    TOOLS,
    VERSION,
    kernel_key,
    maker,
    package_hash,
    source_hash,
)
from tl_attention.compiler.toolchain import FLAGS, Nvcc
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import Sizes, Variant

SCHEDULE = shipped()["best"]
VARIANT = Variant(128, "float16", optional=frozenset({"LSE", "softcap", "Sinks"}))


@pytest.fixture
def nvcc(tmp_path) -> Nvcc:
    """Makes a toolkit with the files that a key looks at."""
    for tool in TOOLS:
        (tmp_path / tool).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / tool).write_text("x")
    return Nvcc(tmp_path, "PATH", "13.0.88", "13.0.88")


SCHEDULES = {
    "another order of KV blocks": SCHEDULE.model_copy(update={"kv_order": "ascending"}),
    "another tile": shipped()["best_causal"],
    "an option": SCHEDULE.model_copy(update={"kernel": SCHEDULE.kernel.model_copy(update={"waits": "exact"})}),
}
VARIANTS = {
    "head_dim": {"head_dim": 64},
    "head_dim_v": {"head_dim_v": 64},
    "dtype": {"dtype": "bfloat16"},
    "mask": {"mask": CAUSAL},
    "sizes": {"group": 1, "sizes": Sizes(1, 2, 3, 4)},
    "optional": {"optional": frozenset({"LSE", "softcap"})},
    "group": {"group": 2},
    "strided": {"strided": True},
    "packed": {"packed": True},
    "tile_heads": {"group": 2, "tile_heads": 2},
    "key_box": {"key_box": 64},
    "parts": {"parts": True},
    "sms": {"sms": 114},
    "arch": {"arch": "sm_86"},
    "trace": {"trace": frozenset({"tile", "end"})},
    "invariant": {"invariant": True},
    "loop": {"loop": "dq"},
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_another_schedule_has_another_key(name) -> None:
    assert kernel_key(SCHEDULES[name], VARIANT) != kernel_key(SCHEDULE, VARIANT)


@pytest.mark.parametrize("name", VARIANTS)
def test_another_variant_has_another_key(name) -> None:
    assert {*VARIANTS} == {*Variant.__dataclass_fields__}
    assert kernel_key(SCHEDULE, replace(VARIANT, **VARIANTS[name])) != kernel_key(SCHEDULE, VARIANT)


def of_another(package: str) -> Callable[[str], str]:
    return lambda name: "another" if name == package else package_hash(name)


PATCHES = {
    "TileLang": (module, "package_hash", of_another("tilelang")),
    "tvm-ffi": (module, "package_hash", of_another("apache-tvm-ffi")),
}
VARIABLES = (*FLAGS, module.OPTION, *module.HEADERS)


@pytest.mark.parametrize("what", [*PATCHES, "version", "ptxas", *TOOLS, *VARIABLES])
def test_whatever_else_makes_a_kernel_changes_its_maker_alone(what, nvcc, monkeypatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    before, key = maker(nvcc), kernel_key(SCHEDULE, VARIANT)
    if what in PATCHES:
        monkeypatch.setattr(*PATCHES[what])
    elif what in TOOLS:
        (nvcc.home / what).write_text("xy")
    elif what in VARIABLES:
        monkeypatch.setenv(what, "/another")
    else:
        nvcc = replace(nvcc, **{what: "13.0.89"})
    assert maker(nvcc) != before and kernel_key(SCHEDULE, VARIANT) == key


def test_another_text_of_the_package_has_another_key(monkeypatch) -> None:
    before = kernel_key(SCHEDULE, VARIANT)
    monkeypatch.setattr(module, "VERSION", VERSION[::-1])
    assert kernel_key(SCHEDULE, VARIANT) != before


def test_what_tilelang_sets_itself_when_it_is_imported_does_not(nvcc, monkeypatch) -> None:
    for variable in module.HEADERS:
        monkeypatch.delenv(variable, raising=False)
    before = maker(nvcc)
    folder = toolchain.tilelang_folder()
    assert folder is not None
    for variable, inside in zip(module.HEADERS, ("3rdparty/../src", "3rdparty/cutlass/include")):
        monkeypatch.setenv(variable, str(folder / inside))
    assert maker(nvcc) == before


def test_where_a_toolkit_lies_does_not(nvcc, tmp_path) -> None:
    shutil.copytree(nvcc.home, tmp_path / "other")
    elsewhere = replace(nvcc, home=tmp_path / "other", source="CUDA_HOME")
    assert maker(elsewhere) == maker(nvcc)


def test_a_package_is_known_by_its_files_or_its_version(tmp_path, monkeypatch) -> None:
    def install(name: str, record: str | None) -> str:
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir(exist_ok=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if record is not None:
            (folder / "RECORD").write_text(record)
        package_hash.cache_clear()
        return package_hash(name)

    monkeypatch.syspath_prepend(str(tmp_path))
    assert package_hash("tlanother") == "" != install("tlanother", None)
    assert install("tlanother", "x.so,sha256=a,1\n") != install("tlanother", "x.so,sha256=b,1\n")
    package_hash.cache_clear()


def shipped_keys() -> list[str]:
    return [kernel_key(schedule, VARIANT) for schedule in shipped().values()]


@pytest.mark.parametrize("seed", sampled(["1", "2"], ["1"]))
def test_every_process_has_the_same_keys(seed) -> None:
    script = "import test_kernel_key; print(*test_kernel_key.shipped_keys())"
    done = python("-c", script, cwd=Path(__file__).parent, PYTHONHASHSEED=seed)
    assert done.stdout.split() == shipped_keys(), done.stderr
    # Some files say only for which other head size a schedule is meant.
    assert len({*shipped_keys()}) == len({*shipped().values()}) > 40


# --- the text of the package -------------------------------------------------------------------------------------


def below(module: str) -> set[str]:
    """Returns the module, and all modules of the package that it imports, directly or not."""
    found, new = set(), {module}
    while new:
        found |= new
        new = {other for name in new for other in imported(name)} - found
    return found


def test_the_version_is_of_all_that_makes_and_proves_a_kernel() -> None:
    made_by = {name for name in MODULES if name.startswith(("tl_attention.kernels", "tl_attention.compiler"))}
    made_by = set().union(*(below(name) for name in made_by))
    assert {MODULES[name].relative_to(PACKAGE).parts[0] for name in made_by} == {*MAKING}


def test_every_file_of_it_changes_the_version(tmp_path) -> None:
    copy = tmp_path / "tl_attention"
    shutil.copytree(PACKAGE, copy)
    assert source_hash(copy) == VERSION
    files = [file for kind in SOURCES for room in MAKING for file in (copy / room).rglob(kind)]
    assert copy / "kernels/warp_specialized/device/list_tiles.cuh" in files
    for file in [copy / "errors.py", *files]:
        text = file.read_text()
        file.write_text(text + "\n")
        assert source_hash(copy) != VERSION, file
        file.write_text(text)
    for changed in ("lab/show/report.py", "lab/model/steps.py", "kernels/__pycache__/registry.cpython-311.pyc"):
        (copy / changed).parent.mkdir(exist_ok=True)
        (copy / changed).write_text("x")
    # As an editor leaves it.
    (copy / "program/.#races.py").symlink_to("nobody@nowhere")
    assert source_hash(copy) == VERSION
    (copy / "program/races.py").rename(copy / "program/races_.py")
    assert source_hash(copy) != VERSION
