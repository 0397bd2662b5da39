"""Compiles generated CUDA to the machine code that a submission carries: by NVRTC 12.9, the same bytes on every machine.

A cubin of CUDA 12 loads into every driver of CUDA 12 and newer. Of CUDA 12's compilers 12.9 is the first whose ptxas keeps
the products of `best` in flight, and NVRTC is the only whole one of them on the package registry.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from tl_attention.build.compiler_errors import first_error
from tl_attention.errors import InputError

NVRTC = "nvidia-cuda-nvrtc-cu12"
# As in the extra `submit` of pyproject.toml. The second and third hold the toolkit's headers.
PACKAGES = {NVRTC: "12.9.86", "nvidia-cuda-runtime-cu12": "12.9.79", "nvidia-cuda-cccl-cu12": "12.9.27"}
VERSION = PACKAGES[NVRTC]
# TileLang's templates call a part of the C++ library, which NVRTC lacks: TileLang's own header stands in for that.
OPTIONS = (
    "--gpu-architecture=sm_90a",
    "--std=c++20",
    "--device-as-default-execution-space",
    "--disable-warnings",
    "--pre-include=tl_templates/cuda/nvrtc_std.h",
)


def build(source: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """The machine code of a CUDA source for sm_90a, and what NVRTC says of it. Imports tilelang, for its headers.

    Raises InputError where NVRTC or the toolkit's headers are missing or of another version, or the source is refused.
    """
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    library, *toolkit = (_installed(name, "libnvrtc.so.12" if name == NVRTC else "include") for name in PACKAGES)
    includes = [f"--include-path={folder}" for folder in (TILELANG_TEMPLATE_PATH, CUTLASS_INCLUDE_DIR, *toolkit)]
    arguments = [option.encode() for option in (*options, *includes)]
    # By its path: another NVRTC, which PyTorch may have loaded, stays apart.
    nvrtc, program = ctypes.CDLL(str(library)), ctypes.c_void_p()
    # The name becomes part of the machine code's symbols.
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None)
    try:
        failed = nvrtc.nvrtcCompileProgram(program, len(arguments), (ctypes.c_char_p * len(arguments))(*arguments))
        log = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if failed:
            raise InputError(f"NVRTC {VERSION} cannot compile the generated CUDA: {first_error(log)}")
        return _read(nvrtc, program, "CUBIN"), log
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    found = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, found)
    return found.raw


def _installed(package: str, wanted: str) -> Path:
    """A file or folder of a package that must be installed in the version of PACKAGES."""
    with suppress(PackageNotFoundError):
        found = distribution(package)
        places = [part.parts for part in found.files or () if wanted in part.parts]
        if places and found.version == PACKAGES[package]:
            return Path(str(found.locate_file(Path(*places[0][: places[0].index(wanted) + 1]))))
    pins = " ".join(f"{name}=={version}" for name, version in PACKAGES.items())
    needed = f"a submission's cubin is built by {NVRTC} {VERSION}: `pip install {pins}` (100 MB)"
    raise InputError(f"{package} {PACKAGES[package]} is not installed, and {needed}")
