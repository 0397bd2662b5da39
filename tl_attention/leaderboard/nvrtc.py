"""Compiles one CUDA file by NVRTC: `python nvrtc.py LIBRARY SOURCE CUBIN OPTION...`; the log goes to stderr.

A script of its own, run in a process of its own: PyTorch may have loaded another NVRTC into this one. It needs nothing
but Python.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


def main(library: str, source: str, cubin: str, *options: str) -> int:
    """NVRTC's status; 0 when the machine code is in `cubin`."""
    nvrtc = ctypes.CDLL(library)
    program = ctypes.c_void_p()
    # The name becomes part of the machine code's symbols, so it may not depend on a folder.
    name = Path(source).name.encode()
    status = nvrtc.nvrtcCreateProgram(ctypes.byref(program), Path(source).read_bytes(), name, 0, None, None)
    if status:
        return status
    status = nvrtc.nvrtcCompileProgram(
        program, len(options), (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    )
    sys.stderr.write(_read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace"))
    if not status:
        Path(cubin).write_bytes(_read(nvrtc, program, "CUBIN"))
    return status


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    if status := getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
        raise SystemExit(f"nvrtcGet{what}Size: status {status}")
    found = ctypes.create_string_buffer(size.value)
    if status := getattr(nvrtc, f"nvrtcGet{what}")(program, found):
        raise SystemExit(f"nvrtcGet{what}: status {status}")
    return found.raw


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
