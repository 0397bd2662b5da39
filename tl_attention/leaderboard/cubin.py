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
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tl_attention.errors import InputError
from tl_attention.leaderboard.device_code import constants

NVRTC = "nvidia-cuda-nvrtc-cu12"
# As in the extra `submit` of pyproject.toml. The second and third hold the toolkit's headers.
PACKAGES = {NVRTC: "12.9.86", "nvidia-cuda-runtime-cu12": "12.9.79", "nvidia-cuda-cccl-cu12": "12.9.27"}
# NVRTC has no C++ library: TileLang's own stands in for it, as where TileLang itself calls NVRTC.
STANDARD_HEADER = "tl_templates/cuda/nvrtc_std.h"
OPTIONS = (
    "--gpu-architecture=sm_90a", "--std=c++20", "--device-as-default-execution-space", "--disable-warnings",
    f"--pre-include={STANDARD_HEADER}",
)
SCRIPT = Path(__file__).with_name("nvrtc.py")


def build(source: str, headers: Mapping[str, str], options: tuple[str, ...]) -> bytes:
    """The machine code of a CUDA source for sm_90a. `headers`: {path as included: text}, besides the toolkit's.

    Raises InputError where NVRTC or the toolkit's headers are missing or of another version, or the source is refused.
    """
    library, *folders = _find()
    with tempfile.TemporaryDirectory(prefix="cubin-") as folder:
        for path, text in headers.items():
            target = Path(folder, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
        kernel, cubin = Path(folder, "kernel.cu"), Path(folder, "kernel.cubin")
        kernel.write_bytes(source.encode())
        includes = [f"--include-path={path}" for path in (folder, *folders)]
        command = [sys.executable, "-I", SCRIPT, library, kernel, cubin, *options, *includes]
        result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            telling = [line for line in lines if "error" in line] or lines or [f"exit code {result.returncode}"]
            raise InputError(f"NVRTC {PACKAGES[NVRTC]} cannot compile the generated CUDA: {telling[0][:300]}")
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
    headers = json.loads(_unpacked(found["HEADERS_XZ"]))
    again = build(found["KERNEL_SOURCE"], headers, tuple(found["NVRTC_OPTIONS"]))
    return sha256(_unpacked(found["CUBIN_XZ"])), sha256(again)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _unpacked(text: str) -> bytes:
    return lzma.decompress(base64.b64decode(text))


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
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"carried   {carried}\ncompiled  {again}\n{'the same' if carried == again else 'they differ'}")
    return 0 if carried == again else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
