"""This module loads and launches a kernel's shared library, the one way from Python to the kernel's machine code.

It loads with tvm_ffi and TileLang's own libraries: to import TileLang would take seconds.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tl_attention.problem.features import Parameter

if TYPE_CHECKING:
    import torch

# The name of every kernel's function.
FUNCTION = "attention"
# TileLang loads them in this way. The first loads a kernel's machine code, the last makes the kernel's TMA descriptors.
LIBRARIES = {
    "libtvm_runtime.so": ctypes.RTLD_GLOBAL,
    "libtvm_compiler.so": ctypes.RTLD_LOCAL,
    "libtilelang.so": ctypes.RTLD_LOCAL,
}
# What ELF files begin with, and the number of NVIDIA's GPUs among their machines.
ELF, EM_CUDA = b"\x7fELF", 190
# The counters of tiles, by device and stream.
_counters: dict[tuple[int, int], torch.Tensor] = {}


def load(file: Path) -> Any:
    """Loads a kernel's library and returns its function.

    The function takes torch's tensors, and numbers, in the order of the parameters. It launches on torch's current
    stream of the tensors' device. Raises whatever the loader raises where the file is no library that this machine can
    load.
    """
    _load_runtime()
    import tvm_ffi

    return tvm_ffi.load_module(file)[FUNCTION]


def machine_code_in(library: bytes) -> bytes | None:
    """Returns the cubin that a kernel's library holds, None where there is none.

    It is an ELF file inside an ELF file, up to the end of its last table of headers.
    """
    at = library.find(ELF, 1)
    while at > 0:
        (machine,) = struct.unpack_from("<H", library, at + 18)
        if machine == EM_CUDA:
            programs, sections = struct.unpack_from("<QQ", library, at + 32)
            *sizes, _ = struct.unpack_from("<HHHHH", library, at + 54)
            ends = programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]
            return library[at : at + max(ends)]
        at = library.find(ELF, at + 1)
    return None


def tilelang_folder() -> Path | None:
    """Returns the folder of TileLang, None where TileLang is not installed. TileLang is not imported."""
    spec = find_spec("tilelang")
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


@functools.cache
def _load_runtime() -> None:
    """Loads, once in a process, the libraries of TVM and TileLang that every kernel's library needs."""
    import tvm_ffi  # noqa: F401  The libraries need its own.

    folder = tilelang_folder()
    if "tilelang" not in sys.modules and folder:
        try:
            for name, mode in LIBRARIES.items():
                ctypes.CDLL(str(folder / "lib" / name), mode=mode | os.RTLD_LAZY)
            return
        except OSError:
            # TileLang is installed in another way than by its wheel, and finds its libraries when it is imported.
            pass
    import tilelang  # noqa: F401


# --- its launch ------------------------------------------------------------------------------------------------------


def launch_of(function: Callable[..., None], parameters: Sequence[Parameter]) -> Callable[..., None]:
    """Returns a function that launches a kernel by its library's `function`, and passes a tile counter if it takes one.

    The arguments are the parameters in order, without the counter.
    """
    counters = [parameter.kind for parameter in parameters].count("counter")
    if not counters:
        return function
    assert counters == 1 and parameters[-1].kind == "counter", "expected one counter, as the last parameter"
    return lambda q, *others: function(q, *others, tile_counter(q.get_device()))


def tile_counter(device: int) -> torch.Tensor:
    """Returns the counter of tiles taken and blocks done, int32 (2,), of a CUDA device's current stream.

    The device is the current device. A kernel with the dynamic tile scheduler takes its tiles from the counter. Every
    launch finds the counter at zero and leaves it at zero, so launches that follow each other on a stream share one.
    """
    import torch  # Late: `compile.py` needs this module where no torch may be loaded.

    if torch.cuda.is_current_stream_capturing():
        # A graph may be replayed on any stream, beside what runs on this one: it gets a counter of its own.
        return torch.zeros(2, dtype=torch.int32, device=f"cuda:{device}")
    # The number of the stream alone, as PyTorch's own compiler asks for it: its object takes longer to make.
    key = device, torch._C._cuda_getCurrentRawStream(device)
    counter = _counters.get(key)
    if counter is None:
        # This thread may allocate from a pool that is given back, as where torch.compile warms up a CUDA graph. Pools
        # are a thread's, so one that has none allocates what stays.
        with ThreadPoolExecutor(1) as without_pool:
            counter = _counters[key] = without_pool.submit(_zeros, torch.cuda.current_stream(device)).result()
    return counter


def _zeros(stream: torch.cuda.Stream) -> torch.Tensor:
    import torch

    with torch.cuda.stream(stream):
        return torch.zeros(2, dtype=torch.int32, device=stream.device)
