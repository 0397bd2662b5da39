"""Builds the wheel: compiles and proves the kernels that ship, and packs them into an archive in the wheel.

    python tools/wheel.py [--calls tools/wheel.yaml] [--output dist] [--cache build/kernels]

The file names calls in the words of `tl-attention warm`. Their kernels are compiled in parallel into the cache, where a
second run finds them. With them travel the licences of what nvcc compiled into them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import files
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import yaml

from tl_attention.compiler import archive, store
from tl_attention.compiler.compile import store_file
from tl_attention.compiler.store import kernel_key
from tl_attention.errors import InputError
from tl_attention.lab.cli.command import fail
from tl_attention.lab.cli.warm import filled, kernels_of, warm
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.problem.card import HOPPER, Card
from tl_attention.schedule.loop.loops import FORWARD

ROOT = Path(__file__).parents[1]
CALLS, PACKAGE = ROOT / "tools/wheel.yaml", "tl_attention"
# What pip builds the wheel from.
PARTS = ("pyproject.toml", "README.md", "LICENSE", PACKAGE, "schedules", "results")
MOST_KERNELS = 800
# Headers of these packages are compiled into kernels. CUTLASS comes with TileLang: its files begin with its licence.
COMPILED_IN = ("tilelang", "nvidia-cuda-nvcc", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
CUTLASS = "3rdparty/cutlass/include/cutlass/cutlass.h"
# The launcher calls two functions of libc, which are older than that.
PLATFORM = "manylinux_2_17_x86_64"


def calls(file: Path) -> Iterator[list[str]]:
    """Yields the arguments of `warm` for each call of a file."""
    for line in yaml.safe_load(file.read_text("utf-8"))["calls"]:
        names = [name for name in line if name != "words"]
        for values in product(*(line[name] for name in names)):
            yield shlex.split(line["words"].format(**dict(zip(names, values))))


def wanted(file: Path, on: Card) -> list[Candidate]:
    """Returns the kernels of a file's calls on this card, each once: those that are alike follow each other."""
    found: dict[str, Candidate] = {}
    for words in calls(file):
        with warm.make_context("warm", [*words, "--arch", on.arch]) as context:
            # Where nothing compiles, PyTorch's operators compute gradients.
            kernels = (one for one in kernels_of(**context.params) if one.variant.loop == FORWARD)
            found |= {kernel_key(one.ours.schedule, one.variant): one for one in kernels}
    if not 0 < len(found) <= MOST_KERNELS:
        raise InputError(f"{file} names {len(found)} kernels, expected 1 to {MOST_KERNELS}")
    return [*found.values()]


def made(kernels: Sequence[Candidate]) -> Iterator[tuple[str, bytes]]:
    """Yields (key, packed kernel) of kernels that are in the store. Raises InputError for one that is not."""
    for one in kernels:
        file = store_file(one.ours.schedule, one.variant)
        kernel = store.read(file)
        if kernel is None:
            raise InputError(f"{file} is damaged or gone, expected it whole: build again")
        yield kernel_key(one.ours.schedule, one.variant), store.packed(kernel)


def licences() -> str:
    """Returns the licences of what is compiled into kernels, each once. Raises InputError where one is missing."""
    found: dict[str, list[str]] = {}
    for package in COMPILED_IN:
        texts = [file for file in files(package) or () if file.name.lower() in ("license", "license.txt")]
        if len(texts) != 1:
            raise InputError(f"{package} has {len(texts)} licences, expected 1")
        found.setdefault(texts[0].read_text("utf-8"), []).append(package)
    of_cutlass = next(file for file in files("tilelang") or () if str(file).endswith(CUTLASS))
    notice, end, _ = of_cutlass.read_text("utf-8").partition("*/")
    if not end or "SPDX-License-Identifier: BSD-3-Clause" not in notice:
        raise InputError(f"{of_cutlass} does not begin with CUTLASS's licence")
    found[notice + end] = ["CUTLASS"]
    return "\n\n".join(f"{', '.join(names)}\n\n{text}" for text, names in found.items())


def copy_with(kernels: Iterable[tuple[str, bytes]], folder: Path) -> None:
    """Copies all that a wheel is built from to a folder, and has the package there ship these kernels."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(ROOT / part, folder)
    file = folder / PACKAGE / archive.FILE
    index = archive.write(file, kernels)
    (folder / PACKAGE / f"{archive.MODULE.rpartition('.')[2]}.py").write_text(
        f'"""The archive of kernels that ships has an index with this SHA-256."""\n\n{archive.NAME} = "{index}"\n'
    )
    file.with_suffix(".licences").write_text(licences(), "utf-8")


@click.command()
@click.option("--calls", "file", type=click.Path(path_type=Path, exists=True), default=CALLS, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "dist", show_default=True)
@click.option("--cache", type=click.Path(path_type=Path), default=ROOT / "build/kernels", show_default=True)
def main(file: Path, output: Path, cache: Path) -> None:
    """Compile the kernels that ship, pack them, and build the wheel."""
    os.environ["TILELANG_CACHE_DIR"] = str(cache.resolve())
    try:
        kernels = wanted(file, HOPPER)
        if not filled(kernels):
            sys.exit(1)
        # pip leaves what it builds in the folder that it builds in, and would pack it again.
        with TemporaryDirectory() as folder:
            copy_with(made(kernels), Path(folder))
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(output)]
            subprocess.run([*pip, f"--config-settings=--build-option=--plat-name={PLATFORM}", folder], check=True)
    except InputError as error:
        fail(str(error))
    click.echo(f"{len(kernels)} kernels, in {max(output.glob('*.whl'), key=lambda file: file.stat().st_mtime_ns)}")


if __name__ == "__main__":
    main()
