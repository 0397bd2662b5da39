"""A kernel's shared library, loaded with tvm_ffi and TileLang's own libraries: to import TileLang would take seconds."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# The name of every kernel's function.
FUNCTION = "attention"
# As TileLang loads them. The first has what loads a kernel's machine code, the last what makes its TMA descriptors.
LIBRARIES = {
    "libtvm_runtime.so": ctypes.RTLD_GLOBAL,
    "libtvm_compiler.so": ctypes.RTLD_LOCAL,
    "libtilelang.so": ctypes.RTLD_LOCAL,
}


def load(file: Path) -> Any:
    """The function of a kernel's library: it takes torch's tensors, and numbers, in the order of the parameters.

    It launches on torch's current stream of the tensors' device. Raises whatever the loader does where the file is no
    library that this machine can load.
    """
    _load_runtime()
    import tvm_ffi

    return tvm_ffi.load_module(file)[FUNCTION]


def tilelang_folder() -> Path | None:
    """Where TileLang is installed, without importing it."""
    spec = find_spec("tilelang")
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


@functools.cache
def _load_runtime() -> None:
    """Load what every kernel's library asks for by name, once in a process."""
    import tvm_ffi  # noqa: F401  The libraries need its own.

    folder = tilelang_folder()
    if "tilelang" not in sys.modules and folder:
        try:
            for name, mode in LIBRARIES.items():
                ctypes.CDLL(str(folder / "lib" / name), mode=mode | os.RTLD_LAZY)
            return
        except OSError:
            # It is installed in another way than by its wheel, and knows how to find them.
            pass
    import tilelang  # noqa: F401
