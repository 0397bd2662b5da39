"""The machine code that a submission carries for machines without a compiler: the generated CUDA through NVRTC 12.9.

A cubin of CUDA 12 loads into every driver of CUDA 12 and newer, one of CUDA 13 does not load into a driver of CUDA 12.
Of CUDA 12's compilers 12.9 is the first whose ptxas keeps the products of best.yaml in flight: that of 12.8 waits for
each wgmma. NVRTC is the only whole compiler of CUDA 12 on the package registry. The versions are fixed, so that the
same CUDA gives the same bytes wherever it is packed, whatever nvcc is installed.

    python -m tl_attention.leaderboard.cubin FILE

compiles a packed file's CUDA again, with the headers that it carries, and compares.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from tl_attention.build.compiler_errors import first_error
from tl_attention.errors import InputError, printable
from tl_attention.leaderboard.device_code import constants
from tl_attention.leaderboard.launch_text import FAST_MATH_FLAG

NVRTC = "nvidia-cuda-nvrtc-cu12"
# As in the extra `submit` of pyproject.toml. The second and third hold the toolkit's headers.
PACKAGES = {NVRTC: "12.9.86", "nvidia-cuda-runtime-cu12": "12.9.79", "nvidia-cuda-cccl-cu12": "12.9.27"}
# NVRTC has no C++ library: TileLang's own stands in for it, as where TileLang itself calls NVRTC.
STANDARD_HEADER = "tl_templates/cuda/nvrtc_std.h"
OPTIONS = (
    "--gpu-architecture=sm_90a",
    "--std=c++20",
    "--device-as-default-execution-space",
    "--disable-warnings",
    f"--pre-include={STANDARD_HEADER}",
)
# Far beyond the 4.3 MB of headers that a packed file carries. xz needs 65 MiB for what it packs at its highest level.
MOST_UNPACKED = 64_000_000
MOST_MEMORY = 2**28
SCRIPT = Path(__file__).with_name("nvrtc.py")


def build(source: str, headers: Mapping[str, str], options: tuple[str, ...]) -> bytes:
    """The machine code of a CUDA source for sm_90a. `headers`: {path as included: text}, besides the toolkit's.

    Raises InputError where NVRTC or the toolkit's headers are missing or of another version, or the source is refused.
    """
    library, *folders = _find()
    with tempfile.TemporaryDirectory(prefix="cubin-") as folder:
        for path, text in headers.items():
            _write_below(Path(folder).resolve(), path, text)
        kernel, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        kernel.write_bytes(source.encode())
        includes = [f"--include-path={path}" for path in (folder, *folders)]
        command: list[str | Path] = [sys.executable, "-I", SCRIPT, library, kernel, cubin, *options, *includes]
        result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if result.returncode:
            why = first_error(result.stderr)
            raise InputError(f"NVRTC {PACKAGES[NVRTC]} cannot compile the generated CUDA: {why}")
        return cubin.read_bytes()


def rebuilt(submission: Path) -> tuple[str, str]:
    """(sha256 of the cubin that the file carries, of the one compiled again from its source and headers)."""
    try:
        found = constants(submission.read_bytes())
    except OSError as error:
        raise InputError(f"{submission}: cannot be read, expected a submission file: {error.strerror}") from None
    names = ("KERNEL_SOURCE", "HEADERS_XZ", "CUBIN_XZ", "NVRTC_OPTIONS")
    missing = [name for name in names if name not in found]
    if missing:
        raise InputError(f"{submission}: no {missing[0]}, expected a file packed with --embed all")
    readers = (_text, _headers, _unpacked, _options)
    source, headers, carried, options = (
        _part(submission, name, read, found[name]) for name, read in zip(names, readers, strict=True)
    )
    return sha256(carried), sha256(build(source, headers, options))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _part(submission: Path, name: str, read: Callable[[Any], Any], value: Any) -> Any:
    """What a constant of the file holds; anybody may have written it."""
    try:
        return read(value)
    except (ValueError, TypeError, AttributeError, EOFError, RecursionError, lzma.LZMAError):
        raise InputError(f"{submission}: {name} is not what a packed file has") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()
    return value


def _headers(value: Any) -> dict[str, str]:
    return {_text(path): _text(text) for path, text in json.loads(_unpacked(value)).items()}


def _options(value: Any) -> tuple[str, ...]:
    """Only those that a file is packed with: NVRTC has others that write files."""
    options = tuple(map(_text, value))
    if not set(options) <= {*OPTIONS, FAST_MATH_FLAG}:
        raise ValueError
    return options


def _unpacked(text: Any) -> bytes:
    unpacker = lzma.LZMADecompressor(memlimit=MOST_MEMORY)
    data = unpacker.decompress(base64.b64decode(_text(text)), MOST_UNPACKED)
    if not unpacker.eof:
        raise ValueError
    return data


def _write_below(folder: Path, path: str, text: str) -> None:
    """Write a header in the folder. The path may be a checked file's word, so it may not lead out of there."""
    try:
        target = (folder / path).resolve()
        leads_out = folder not in target.parents
    except ValueError as error:
        raise InputError(f"header {path[:60]!r}: {error}") from None
    if leads_out:
        raise InputError(f"header {path[:60]!r}: leads out of the folder of the headers")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
    except OSError as error:
        raise InputError(f"header {path[:60]!r}: cannot be written: {error.strerror}") from None


def _find() -> tuple[Path, ...]:
    """The library, then the folders of the toolkit's headers."""
    found = []
    for package, version in PACKAGES.items():
        try:
            installed = distribution(package)
        except PackageNotFoundError:
            raise InputError(_how_to_get(f"{package} is not installed")) from None
        if installed.version != version:
            raise InputError(_how_to_get(f"{package} is {installed.version}"))
        wanted = "libnvrtc.so.12" if package == NVRTC else "include"
        places = [Path(part).parts for part in installed.files or ()]
        place = next((part[: part.index(wanted) + 1] for part in places if wanted in part), None)
        if place is None:
            raise InputError(_how_to_get(f"{package} holds no {wanted}"))
        found.append(Path(str(installed.locate_file(Path(*place)))))
    return tuple(found)


def _how_to_get(fault: str) -> str:
    wanted = " ".join(f"{package}=={version}" for package, version in PACKAGES.items())
    return (
        f"{fault}, and the carried cubin is built by {NVRTC} {PACKAGES[NVRTC]}: `pip install {wanted}` (100 MB), "
        "or pack without it: --embed tilelang or --embed cuda"
    )


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m tl_attention.leaderboard.cubin FILE", file=sys.stderr)
        return 2
    try:
        carried, again = rebuilt(Path(arguments[0]))
    except InputError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    print(f"carried   {carried}\ncompiled  {again}\n{'the same' if carried == again else 'they differ'}")
    return 0 if carried == again else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
