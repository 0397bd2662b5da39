"""Builds the wheel: compiles and proves the kernels that ship, and packs them into an archive in the wheel.

    python tools/wheel.py [--calls tools/wheel.yaml] [--output dist]

The file names calls in the words of `tl-attention warm`, which compiles their kernels in parallel into build/kernels,
where a second run finds them. The archive is in the package while pip builds the wheel, and gone afterwards.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import click
import yaml

from tl_attention.compiler import archive, store
from tl_attention.errors import InputError
from tl_attention.lab.cli.command import fail

ROOT = Path(__file__).parents[1]
PACKAGE, CALLS, CACHE = ROOT / "tl_attention", ROOT / "tools/wheel.yaml", ROOT / "build/kernels"
MOST_KERNELS = 800


def calls(file: Path) -> Iterator[list[str]]:
    """Yields the arguments of `warm` for each call of a file."""
    for line in yaml.safe_load(file.read_text("utf-8"))["calls"]:
        names = [name for name in line if name != "words"]
        for values in product(*(line[name] for name in names)):
            yield shlex.split(line["words"].format(**dict(zip(names, values))))


def kernels(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yields (key, packed kernel) of a store's files as they were made: those that are alike follow each other."""
    for file in sorted(folder.glob(f"*{store.SUFFIX}"), key=lambda file: file.stat().st_mtime_ns):
        kernel = store.read(file)
        if kernel is None:
            raise InputError(f"{file} is damaged, expected it whole: delete it, and build again")
        yield file.name.partition("-")[0], store.packed(kernel)


@contextmanager
def shipped(folder: Path) -> Iterator[int]:
    """Has the package ship the kernels of a store's folder, and yields how many these are."""
    file, module = PACKAGE / archive.FILE, PACKAGE / f"{archive.MODULE.rpartition('.')[2]}.py"
    found = dict(kernels(folder))
    if not 0 < len(found) <= MOST_KERNELS:
        raise InputError(
            f"{folder} has {len(found)} kernels, expected 1 to {MOST_KERNELS}: delete the folder to begin anew"
        )
    try:
        index = archive.write(file, found.items())
        module.write_text(
            f'"""The archive of kernels that ships has an index with this SHA-256."""\n\n{archive.NAME} = "{index}"\n'
        )
        yield len(found)
    finally:
        file.unlink(missing_ok=True)
        module.unlink(missing_ok=True)


@click.command()
@click.option("--calls", "file", type=click.Path(path_type=Path, exists=True), default=CALLS, show_default=True)
@click.option("--output", type=click.Path(path_type=Path), default=ROOT / "dist", show_default=True)
def main(file: Path, output: Path) -> None:
    """Compile the kernels that ship, pack them, and build the wheel."""
    environment = os.environ | {"TILELANG_CACHE_DIR": str(CACHE)}
    for words in calls(file):
        click.echo(f"warm {shlex.join(words)}")
        command = [sys.executable, "-m", "tl_attention", "warm", *words]
        if subprocess.run(command, env=environment, cwd=ROOT).returncode:
            sys.exit(1)
    try:
        with shipped(CACHE / store.FOLDER) as count:
            pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(output), str(ROOT)]
            subprocess.run(pip, check=True)
        click.echo(f"{count} kernels, in {max(output.glob('*.whl'), key=lambda file: file.stat().st_mtime_ns)}")
    except InputError as error:
        fail(str(error))


if __name__ == "__main__":
    main()
