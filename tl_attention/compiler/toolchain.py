"""This module chooses the nvcc that compiles the kernels, and the cache that its machine code goes to.

TileLang takes CUDA_HOME's nvcc, or the first on the PATH, whatever torch's CUDA is, and its cache does not know which
nvcc made an entry. The rule here: nvcc is searched in the Python packages, CUDA_HOME, the PATH and /usr/local/cuda, in
this order. The first nvcc with the release of torch's CUDA wins. Where none has this release, or torch is built without
CUDA, the first nvcc wins.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tl_attention.compiler import trust
from tl_attention.compiler.scratch import scratch_folder
from tl_attention.errors import InputError

PACKAGE = "nvidia-cuda-nvcc"
# What nvcc needs to compile for a GPU: itself, cicc, its own headers, the runtime's, and libcu++.
EXTRAS = "cccl,crt,cudart,nvcc,nvvm"
PLACES = "the Python packages, CUDA_HOME, the PATH and /usr/local/cuda"
PACKAGED = "13.0"
HOST_COMPILERS = ("g++", "clang++", "c++")
NO_HOST_COMPILER = "nvcc needs one: apt-get install g++"
# The ends of errors: of a missing compiler, which `doctor` itself leaves out, and of a missing TileLang.
SEE_DOCTOR = "; `tl-attention doctor` shows all that is missing"
SEE_EXTRA = "expected what `pip install 'tl-attention[schedules]'` has"
VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)")
HEADER = Path("include/cuda_runtime_api.h")
HEADER_VERSION = re.compile(r"#define CUDART_VERSION\s+(\d+)")
# nvcc reads these variables before its command line, and after it.
FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
# TileLang's variables, and the values that TileLang takes for true.
CACHE_VARIABLE, CACHE_DEFAULT = "TILELANG_CACHE_DIR", "~/.tilelang/cache"
# The folder of what TileLang keeps, in the nvcc's folder of the cache.
FOLDER = "tilelang"
NO_CACHE_VARIABLE, TRUE = "TILELANG_DISABLE_CACHE", ("1", "true", "yes", "on")


class NoCompiler(InputError):
    """A NoCompiler is raised where no nvcc can compile; its text says how to install one."""


@dataclass(frozen=True)
class Nvcc:
    """An `Nvcc` holds a CUDA toolkit's folder, where it was found, and its versions of nvcc and ptxas."""

    home: Path
    source: str  # where it was found
    version: str  # such as 13.0.88
    ptxas: str  # a version too
    fault: str = ""  # a few words on why the toolkit cannot compile, "" where nothing is known against it

    @property
    def release(self) -> str:
        """Returns nvcc's release as torch.version.cuda spells it, such as `13.0` for version 13.0.88."""
        return self.version.rpartition(".")[0]

    @property
    def cache(self) -> str:
        """Returns the name of the cache's folder for this compiler's versions and for flags of the environment."""
        flags = "\n".join(f"{name}={os.environ[name]}" for name in FLAGS if os.environ.get(name))
        return f"nvcc-{self.version}-ptxas-{self.ptxas}" + (
            f"-flags-{sha256(flags.encode()).hexdigest()[:12]}" if flags else ""
        )


def nvccs() -> Iterator[Nvcc]:
    """Yields every nvcc that runs, from the Python packages, CUDA_HOME, the PATH and /usr/local/cuda in order.

    Each comes once.
    """
    seen: set[Path] = set()
    for source, home in _homes():
        home = home.resolve()
        if home not in seen and (home / "bin/nvcc").is_file() and (nvcc := _asked(home, source)):
            yield nvcc
        seen.add(home)


def chosen_nvcc(torch_cuda: str | None) -> Nvcc:
    """Returns the first nvcc found that can compile and has torch's CUDA release, or else the first that can.

    `torch_cuda` is torch.version.cuda. Raises NoCompiler with a command that helps where there is none, and InputError
    where torch is refused.

    Every compilation, and every look into the store of kernels, asks for its nvcc here first: a torch that is refused
    is refused here.
    """
    if fault := torch_fault(torch_cuda):
        raise InputError(f"torch: {fault}")
    first, faults = None, []
    for nvcc in nvccs():
        if nvcc.fault:
            faults.append(f"{nvcc.home}: {nvcc.fault}")
        elif torch_cuda in (None, nvcc.release):
            return nvcc
        else:
            first = first or nvcc
    if first is None:
        why = f" ({'; '.join(faults)})" if faults else ""
        raise NoCompiler(f"nvcc: none that can compile in {PLACES}{why}; {remedy(torch_cuda)}{SEE_DOCTOR}")
    return first


def host_compiler() -> str | None:
    """Returns the path of the C++ compiler for nvcc, that of CXX, CC or the first of HOST_COMPILERS on the PATH.

    It is None where there is none.
    """
    named = os.environ.get("CXX") or os.environ.get("CC")
    return next((path for name in ([named] if named else HOST_COMPILERS) if (path := shutil.which(name))), None)


def check_host_compiler() -> None:
    """Raises InputError where there is no C++ compiler, or where CXX or CC names none."""
    if host_compiler() is None:
        named = next((f"{name}={os.environ[name]}" for name in ("CXX", "CC") if os.environ.get(name)), "")
        where = f"{named} is none" if named else f"none of {', '.join(HOST_COMPILERS)} is on the PATH"
        raise InputError(f"C++ compiler: {where}; {NO_HOST_COMPILER}{SEE_DOCTOR}")


def torch_fault(torch_cuda: str | None) -> str:
    """Returns why a torch for a CUDA older than 13 is refused, with a command that helps; "" for any other torch.

    This package's requirements allow a torch for CUDA 12, and beside such a torch pip installs the nvcc of CUDA 13.
    """
    if torch_cuda is None or major(torch_cuda) >= major(PACKAGED):
        return ""
    import torch

    # Both at once: an nvcc that came with the older torch is of another release than the new torch's runtime.
    command = f"pip install --force-reinstall torch 'cuda-toolkit[{EXTRAS}]'"
    return f"{torch.__version__} is for CUDA {torch_cuda}, expected one for CUDA {major(PACKAGED)} or newer: {command}"


def remedy(torch_cuda: str | None) -> str:
    """Returns words that say how to install an nvcc of torch's CUDA release, 13.0 for None.

    Packages have nvcc from CUDA 13 on.
    """
    release = torch_cuda or PACKAGED
    if major(release) < major(PACKAGED):
        return f"install NVIDIA's CUDA {release} toolkit, and set CUDA_HOME to its folder"
    return f"install one: pip install 'cuda-toolkit[{EXTRAS}]=={release}.*'"


def major(release: str) -> int:
    """Returns the major number of a release as an int, such as 13 for `13.0`.

    A driver runs machine code of its own and of earlier major releases.
    """
    return int(release.partition(".")[0])


@contextmanager
def use_nvcc() -> Iterator[Nvcc]:
    """Makes TileLang compile with the chosen nvcc inside the context, and keep its results in that nvcc's own cache.

    TileLang has no argument for either. Both are set for the time of our own compilation only, so that a program's
    other TileLang kernels are compiled as before. Where the cache cannot be written, a temporary folder replaces it for
    that time. Raises InputError where others may write to the cache: TileLang loads what it finds there.
    """
    import torch

    nvcc = chosen_nvcc(torch.version.cuda)
    with _written(cache_folder() / nvcc.cache / FOLDER) as folder:
        _import_tilelang(folder)
        from tilelang.contrib import nvcc as tilelang_nvcc
        from tilelang.env import env

        # TileLang's descriptor of its cache folder holds the value that a program may have forced.
        home, forced = tilelang_nvcc.CUDA_HOME, vars(type(env))[CACHE_VARIABLE]._forced_value
        tilelang_nvcc.CUDA_HOME = str(nvcc.home)
        env.TILELANG_CACHE_DIR = str(folder)
        try:
            yield nvcc
        finally:
            tilelang_nvcc.CUDA_HOME = home
            env.TILELANG_CACHE_DIR = forced


def tilelang_folder() -> Path | None:
    """Returns the folder of TileLang, None where TileLang is not installed. TileLang is not imported."""
    spec = find_spec("tilelang")
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def cache_folder() -> Path:
    """Returns the folder of TileLang's cache, from TileLang's settings or TILELANG_CACHE_DIR.

    TileLang is not imported. The chosen nvcc has a folder of its own there.
    """
    env = _env()
    named = env.TILELANG_CACHE_DIR if env else os.environ.get(CACHE_VARIABLE)
    return Path(named or os.path.expanduser(CACHE_DEFAULT))


def cache_enabled() -> bool:
    """Says whether TileLang's cache is on, by TileLang's settings or TILELANG_DISABLE_CACHE.

    TileLang is not imported.
    """
    env = _env()
    return env.is_cache_enabled() if env else os.environ.get(NO_CACHE_VARIABLE, "").lower() not in TRUE


def check_cache(*compilers: str) -> None:
    """Raises InputError where other users may write to the cache, if it is on, or to these compilers' folders in it."""
    if cache_enabled():
        for folder in (cache_folder(), *(cache_folder() / name for name in compilers)):
            trust.check(folder)


def _env() -> Any:
    """Returns TileLang's settings, which a program may have changed; None where TileLang has not been imported."""
    return getattr(sys.modules.get("tilelang"), "env", None)


@contextmanager
def _written(folder: Path) -> Iterator[Path]:
    """Yields the folder, made if need be, or a temporary one where the cache is off or the folder cannot be written."""
    if cache_enabled() and can_be_written(folder):
        trust.check_private(folder)
        yield folder
    else:
        with scratch_folder() as other:
            yield other


def can_be_written(folder: Path) -> bool:
    """Says whether files can be written to a folder, made if need be.

    Raises InputError where others may write to the folder.
    """
    try:
        trust.make_private(folder)
        # Permissions do not tell: root has all of them, also where the disk is full or mounted to be read.
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError:
        return False
    return True


def _import_tilelang(folder: Path) -> None:
    """Imports TileLang with this folder as its cache; the import makes the folder, and fails where it cannot."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(folder)
    try:
        import tilelang  # noqa: F401
    finally:
        if before is None:
            del os.environ[CACHE_VARIABLE]
        else:
            os.environ[CACHE_VARIABLE] = before


def packaged(package: str, name: str) -> list[Path]:
    """Returns the paths of files of this name in a Python package, [] where the package is not installed."""
    try:
        return [Path(str(file.locate())) for file in files(package) or () if file.name == name]
    except PackageNotFoundError:
        return []


def _homes() -> Iterator[tuple[str, Path]]:
    for nvcc in packaged(PACKAGE, "nvcc"):
        yield "Python packages", nvcc.parent.parent
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(variable):
            yield variable, Path(home)
    if on_path := shutil.which("nvcc"):
        # Debian and others link /usr/bin/nvcc to the toolkit, which has the headers.
        yield "PATH", Path(on_path).resolve().parent.parent
    yield "/usr/local/cuda", Path("/usr/local/cuda")


@functools.cache
def _asked(home: Path, source: str) -> Nvcc | None:
    nvcc, ptxas = _version(home / "bin/nvcc"), _version(home / "bin/ptxas")
    if nvcc is None:
        return None
    fault = "it has no ptxas" if ptxas is None else _header_fault(home, nvcc)
    return Nvcc(home, source, nvcc, ptxas or "none", fault)


def _version(tool: Path) -> str | None:
    try:
        done = subprocess.run([str(tool), "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = VERSION.search(done.stdout)
    return match[1] if match else None


def _header_fault(home: Path, nvcc: str) -> str:
    """Returns why the toolkit's headers do not fit an nvcc of this version, "" where they fit."""
    # nvcc refuses headers of another release, in the middle of a compilation.
    try:
        text = (home / HEADER).read_text(errors="replace")
    except OSError:
        return f"it has no {HEADER}"
    match = HEADER_VERSION.search(text)
    number = int(match[1]) if match else 0
    release = f"{number // 1000}.{number % 1000 // 10}"
    return "" if nvcc.startswith(f"{release}.") else f"its headers are of CUDA {release}, its nvcc of {nvcc}"
