"""Runs a kernel's host code as TileLang compiles it, and our launcher, with a driver that writes down what they pass.

It is a program, as the driver's stand-in has to be there before TileLang is: `launches` starts it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from conftest import python
from golden_kernels import KERNELS, GoldenKernel

from tl_attention.kernels.registry import lowering_of, parameters_of
from tl_attention.launch.launcher import TYPES

SIGNATURE = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\(([^)]*)\);')
BYTES = {"CUtensorMap": 128, "int": 4, "float": 4, "int64_t": 8}
SIZES = {
    "batch": 2,
    "seq_q": 300,
    "seq_kv": 555,
    "results": 6,
    "bounds": 3,
    "used_q": 2,
    "used_k": 3,
    "words": 1000,
    "entries": 24,
}
STREAM = 0x5EED0
# A capsule does not copy its name.
NAME = b"dlpack_exchange_api"
CUDA = 2
CODE = b"machine code"


class View(ctypes.Structure):
    """A View is DLPack's DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    """A Managed is DLPack's DLManagedTensorVersioned; nothing has to be done when it is given back."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("none", ctypes.c_void_p * 2),
        ("flags", ctypes.c_uint64),
        ("view", View),
    ]


MANAGING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
VIEWING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View))
ASKING = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Exchange(ctypes.Structure):
    """An Exchange is DLPack's DLPackExchangeAPI, without what makes tensors."""

    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("none", ctypes.c_void_p * 2),
        ("managed", MANAGING),
        ("imported", ctypes.c_void_p),
        ("view", VIEWING),
        ("stream", ASKING),
    ]


@MANAGING
def _managed(tensor: Any, out: Any) -> int:
    """TileLang's host code takes tensors so, and our launcher as `_view` gives them."""
    out[0] = ctypes.addressof(tensor.managed)
    return 0


@VIEWING
def _view(tensor: Any, out: Any) -> int:
    ctypes.pointer(out.contents)[0] = tensor.view
    return 0


@ASKING
def _stream(device_type: int, device: int, out: Any) -> int:
    out[0] = STREAM
    return 0


_exchange = Exchange((1, 3), (None, None), _managed, None, _view, _stream)
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype, _capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Tensor:
    """A Tensor says that it lies on a GPU, at an address where nothing is."""

    __dlpack_c_exchange_api__ = _capsule(ctypes.addressof(_exchange), NAME, None)

    def __init__(self, address: int, dtype: str, shape: Sequence[int], strides: Sequence[int], device: int = 0):
        code, bits = TYPES[dtype]
        lengths = ctypes.c_int64 * len(shape)
        self.of = lengths(*shape), lengths(*strides)
        self.view = View(address, (CUDA, device), len(shape), code, bits, 1, *self.of, 0)
        self.managed = Managed((1, 3), (None, None), 0, self.view)


def contiguous(shape: Sequence[int]) -> list[int]:
    """Returns the strides of a contiguous tensor."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.insert(0, strides[0] * length)
    return strides


# Pages of so many rows each, and from each to the next so many, are seq_kv rows; and a table for so many sequences.
PAGES, PAGE_SIZE, PAGE_ROWS, SEQUENCES = 5, 55, 125, 4


def arguments(kernel: GoldenKernel, in_pages: bool = False) -> Iterator[Any]:
    """Yields an argument for each parameter of a kernel; keys `in_pages`, and their table, have one dimension more."""
    variant = kernel.variant
    heads = {"heads": 3 * variant.some_group, "heads_kv": 3}
    columns = {"head_dim": variant.head_dim, "head_dim_v": variant.head_dim_v}
    sizes = SIZES | heads | columns | (variant.dims(variant.sizes) if variant.sizes else {})
    for number, parameter in enumerate(parameters_of(kernel.schedule, variant)):
        if parameter.kind == "scalar":
            of_group = variant.some_group if parameter.name == "group" else 40 + number
            yield number + 0.375 if parameter.dtype == "float32" else of_group
            continue
        shape = [sizes.get(dimension, dimension) for dimension in parameter.dims]
        strides = contiguous(shape)
        if variant.strided and parameter.strides:
            # As of a tensor that has other rows between its own.
            strides = [stride * (2 + number) for stride in strides[:-1]] + [1]
        if in_pages and parameter.name in ("K", "V"):
            shape, strides = [PAGES, PAGE_SIZE, *shape[1:]], [PAGE_ROWS * strides[0], *strides]
        elif in_pages and parameter.name == "BlockTable":
            shape, strides = [SEQUENCES, shape[0] // SEQUENCES], [shape[0] // SEQUENCES, 1]
        yield Tensor(4096 * (number + 1), parameter.dtype or variant.dtype, shape, strides)


def parameter_bytes(source: str) -> dict[str, list[int]]:
    """Returns how many bytes each parameter of each kernel has, off the declarations in generated CUDA."""
    found = {}
    for name, parameters in SIGNATURE.findall(source):
        found[name] = [
            8 if "*" in one else BYTES[next(kind for kind in BYTES if re.search(rf"\b{kind}\b", one))]
            for one in parameters.split(", ")
        ]
    return found


def write_down(driver: ctypes.CDLL, record: Path, source: str, function: Callable[..., None], given: list[Any]) -> str:
    """Calls a kernel's function twice, and returns what the driver's stand-in wrote of it."""
    driver.record_to(str(record).encode())
    for name, sizes in parameter_bytes(source).items():
        driver.expect(name.encode(), len(sizes), (ctypes.c_int * len(sizes))(*sizes))
    for _ in range(2):
        function(*given)
    return record.read_text()


def main(driver_file: str, folder: str, *names: str) -> None:
    """Prints as JSON, by kernel: CUDA, plan, what TileLang's host code passes, and what our launcher does."""
    import tvm_ffi
    from tilelang.engine.lower import device_codegen, host_codegen

    from tl_attention.codeproof.read.host_ir import plan_of
    from tl_attention.compiler.generation import lowering_ir
    from tl_attention.compiler.toolchain import use_nvcc
    from tl_attention.launch.launcher import function_of
    from tl_attention.launch.plan import to_json
    from tl_attention.program.planned import Planned

    driver, record, found = ctypes.CDLL(driver_file), Path(folder, f"record {os.getpid()}"), {}
    # The stand-in asks nothing of machine code.
    tvm_ffi.register_global_func("tilelang_callback_cuda_compile", f=lambda *_: bytearray(CODE), override=True)
    for name in names:
        kernel = KERNELS[name]
        lowering = lowering_of(kernel.schedule)
        with use_nvcc():
            program = lowering.prim_func(Planned(kernel.schedule), kernel.variant)
            with lowering_ir(program, kernel.variant.arch, dict(lowering.pass_configs)) as (host, device, context):
                plan = plan_of(host, device)
                of_device, module = device_codegen(device, context), host_codegen(host, context)
            module.import_module(of_device)
            # The loader knows a library by its file.
            library = record.with_suffix(f".{len(found)}.so")
            module.export_library(str(library))
        source, parameters = of_device.inspect_source(), parameters_of(kernel.schedule, kernel.variant)
        functions = (
            tvm_ffi.load_module(library)["attention"],
            function_of(plan, CODE, kernel.variant, parameters, driver_file),
        )
        given = [*arguments(kernel)], [*arguments(kernel, in_pages=kernel.variant.key_box > 0)]
        passed = [write_down(driver, record, source, *call) for call in zip(functions, given)]
        found[name] = source, to_json(plan), *passed
    print("launches", json.dumps(found))


def launches(driver: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Returns by golden kernel: CUDA, plan, what its host code passes to the stand-in, and what our launcher does."""
    done = python(__file__, str(driver), str(driver.parent), *names, LD_PRELOAD=str(driver))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout.rpartition("launches ")[2])
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
