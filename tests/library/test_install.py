"""The dependencies agree with those of every torch that people have, without asking a registry.

`registry_metadata.json` holds what the registry's own Linux builds of torch 2.11 to 2.15 require, and what each extra
of the cuda-toolkit that they pin requires (Requires-Dist of their wheels, as `pip install --dry-run --report` shows
it). A CPU build of torch requires none of it, and would hide a conflict.
"""

import importlib.metadata
import json
import tomllib
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REGISTRY = json.loads(Path(__file__).with_name("registry_metadata.json").read_text())
SCHEDULES = PROJECT["optional-dependencies"]["schedules"]
OURS = {canonicalize_name(r.name): r for r in map(Requirement, PROJECT["dependencies"] + SCHEDULES)}
LINUX = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}


def pins(python: str) -> dict[str, SpecifierSet]:
    """Returns the constraints that hold on Linux for this Python."""
    environment = {**LINUX, "python_version": python, "python_full_version": f"{python}.0"}
    lines = (line.partition("#")[0].strip() for line in (ROOT / "constraints.txt").read_text().splitlines())
    required = [Requirement(line) for line in lines if line]
    return {canonicalize_name(r.name): r.specifier for r in required if not r.marker or r.marker.evaluate(environment)}


def release(version: str) -> str:
    """Returns the release of a version: `13.0` of 13.0.88."""
    return ".".join(version.split(".")[:2])


def toolkit_of(torch: str) -> tuple[str, set[str]]:
    """Returns (version, extras) of the cuda-toolkit that a torch pins."""
    needed = next(r for r in map(Requirement, REGISTRY["torch"][torch]) if r.name == "cuda-toolkit")
    versions = [version for version in REGISTRY["cuda-toolkit"] if needed.specifier.contains(version)]
    assert len(versions) == 1, f"torch {torch} needs {needed}, of which registry_metadata.json has {versions}"
    return versions[0], needed.extras


def conflicts(torch: str, ours: dict[str, Requirement], pinned: dict[str, SpecifierSet]) -> list[str]:
    """Says what keeps a CUDA build of this torch from being installed beside `ours` under the constraints `pinned`."""
    toolkit, extras = toolkit_of(torch)
    needed = [Requirement(text) for text in REGISTRY["torch"][torch]]
    wanted = extras | (ours["cuda-toolkit"].extras if "cuda-toolkit" in ours else set())
    needed += [Requirement(text) for extra in sorted(wanted) for text in REGISTRY["cuda-toolkit"][toolkit][extra]]
    found = []
    for name, requirement in [(canonicalize_name(r.name), r) for r in needed]:
        exact = {spec.version.removesuffix(".*") for spec in requirement.specifier if spec.operator == "=="}
        for version in exact:
            if name in pinned and not any(requirement.specifier.contains(s.version) for s in pinned[name]):
                found.append(f"torch {torch} needs {requirement}, constraints.txt has {pinned[name]}")
            # A release that begins as the pin does stands for it: 13.0.88 for ==13.0.88.*
            if name in ours and not ours[name].specifier.contains(version):
                found.append(f"torch {torch} needs {requirement}, pyproject.toml has {ours[name]}")
    if not ours["torch"].specifier.contains(torch):
        found.append(f"torch {torch} is outside of pyproject.toml's {ours['torch']}")
    return found


@pytest.mark.parametrize("torch", REGISTRY["torch"])
def test_every_torch_that_people_have_can_be_installed_beside_us(torch) -> None:
    assert conflicts(torch, OURS, {}) == []


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14"])
def test_the_constraints_are_true_for_the_cuda_build_of_their_torch(python) -> None:
    pinned = pins(python)
    torch = next(version for version in REGISTRY["torch"] if pinned["torch"].contains(version))
    assert conflicts(torch, OURS, pinned) == []


def exact_pins(torch: str) -> set[str]:
    """Returns the packages that this torch requires in one exact version, itself or through our toolkit's packages."""
    toolkit, extras = toolkit_of(torch)
    parts = [
        text for extra in extras | OURS["cuda-toolkit"].extras for text in REGISTRY["cuda-toolkit"][toolkit][extra]
    ]
    required = map(Requirement, REGISTRY["torch"][torch] + parts)
    return {canonicalize_name(r.name) for r in required if any(spec.operator == "==" for spec in r.specifier)}


@pytest.mark.parametrize("torch", REGISTRY["torch"])
def test_what_a_torch_pins_exactly_stands_in_our_dependencies_without_a_version(torch) -> None:
    """pip settles the dependencies of ours that have a version before it looks at torch's.

    With `cuda-toolkit>=13.0,<14` it takes the newest toolkit, which no torch pins, and downloads torch after torch in
    search of one that does: seven of them, 6.6 GB instead of 3.2.
    """
    bounded = {name: str(OURS[name]) for name in exact_pins(torch) if name in OURS and OURS[name].specifier}
    assert not bounded, f"torch {torch} pins these exactly, so leave their version to it: {bounded}"
    assert "cuda-toolkit" in exact_pins(torch), "nothing was looked at"


def test_nvcc_and_its_headers_are_of_one_toolkit_whatever_torch_pins() -> None:
    for version, extras in REGISTRY["cuda-toolkit"].items():
        assert {"nvcc", "cudart", "crt", "nvvm", "cccl"} <= OURS["cuda-toolkit"].extras <= set(extras)
        parts = [Requirement(text) for extra in ("nvcc", "cudart", "crt", "nvvm") for text in extras[extra]]
        releases = {release(next(iter(part.specifier)).version) for part in parts}
        assert releases == {release(version)}
        for tool in ("nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"):  # The newest reads what each nvcc makes.
            assert OURS[tool].specifier.contains(version), f"{OURS[tool]} has none for CUDA {version}"


def test_a_caller_needs_four_packages_and_a_checkout_has_tilelang_first() -> None:
    required = [Requirement(text).name for text in PROJECT["dependencies"]]
    assert required == ["torch", "numpy", "pydantic", "pyyaml"] and SCHEDULES[0].startswith("tilelang==")
    for name in ("submit", "pictures", "search"):
        assert PROJECT["optional-dependencies"][name][0] == "tl-attention[schedules]"


def test_every_dependency_is_pinned_by_the_constraints() -> None:
    extras = [Requirement(text) for texts in PROJECT["optional-dependencies"].values() for text in texts]
    # An extra may name another one of ours.
    for requirement in (*OURS.values(), *(extra for extra in extras if extra.name != PROJECT["name"])):
        specifier = pins("3.11")[canonicalize_name(requirement.name)]
        version = next(iter(specifier)).version
        assert str(specifier).startswith("==") and requirement.specifier.contains(version), requirement


def test_the_installed_toolkit_is_of_one_release_and_that_of_a_torch_that_is_built_for_cuda() -> None:
    """This environment is tested; if nvcc comes from the machine and not from packages, nothing can be compared."""
    versions = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions()}
    parts = ("nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-nvvm", "nvidia-cuda-runtime")
    assert len({release(versions[part]) for part in parts if part in versions and "nvidia-cuda-nvcc" in versions}) <= 1
    for requirement in map(Requirement, importlib.metadata.requires("torch") or ()):
        if requirement.name.startswith(("nvidia-", "cuda-toolkit")) and requirement.marker.evaluate({"extra": ""}):
            assert requirement.specifier.contains(versions[requirement.name]), requirement
