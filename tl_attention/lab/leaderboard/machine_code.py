"""This module makes the machine code that a submission carries, and the Python text that launches it.

The machine code is the same bytes on every machine. NVRTC 12.9 compiles it from the generated CUDA; the launch is the
HostPlan that was proved. A cubin of CUDA 12 loads into every driver of CUDA 12 and newer. 12.9 is the
first release of CUDA 12 in which ptxas keeps the products of `best` in flight. NVRTC is the only complete compiler of
CUDA 12 on the package registry.
"""

from __future__ import annotations

import ctypes
from importlib.metadata import distribution
from pathlib import Path

from tl_attention.compiler.compile import CompiledKernel
from tl_attention.compiler.compiler_errors import first_error
from tl_attention.errors import InputError
from tl_attention.lab.leaderboard.python_text import enclosed
from tl_attention.launch.plan import Descriptor, SizeExpression

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
# The loader in templates/submission.py.in reads this text.
LAUNCH = '''\
KERNEL_NAME = "{plan.kernel}"
BLOCK = {plan.block}
CLUSTER_DIMS = {plan.cluster}
SHARED_BYTES = {plan.shared_bytes}


def launch_plan(descriptor, {parameters}):
    """Returns the grid, and the kernel's arguments in order.

    A TMA descriptor's dimensions are innermost first. Its strides are in bytes, without the innermost one. The last four
    numbers are those of CUDA's enumerations.
    """
    {names} = {sizes}
    return {grid}, {arguments}
'''
CTYPES = {"pointer": "c_void_p({}.data_ptr())", "int": "c_int32({})", "float": "c_float({})"}


def build(source: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """Returns the machine code of a CUDA source for sm_90a, and NVRTC's log. Imports tilelang, for its headers.

    PACKAGES must be installed. Raises InputError where the source is refused.
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
    """Returns the path of the file or folder `wanted` in an installed Python package."""
    found = distribution(package)
    parts = next(file.parts for file in found.files or () if wanted in file.parts)
    return Path(str(found.locate_file(Path(*parts[: parts.index(wanted) + 1]))))


# --- its launch ------------------------------------------------------------------------------------------------------


def launch_text(compiled: CompiledKernel) -> str:
    """Returns Python text with a kernel's launch constants and the function `launch_plan`, of its HostPlan.

    A submission's loader reads them.
    """
    plan = compiled.generated.plan
    descriptors = {d.name: _descriptor(d) for d in plan.descriptors}
    arguments = [descriptors.get(p.name) or f"ctypes.{CTYPES[p.kind].format(p.name)}" for p in plan.parameters]
    return LAUNCH.format(
        plan=plan,
        parameters=", ".join(p.name for p in compiled.parameters if p.kind != "counter"),
        names=", ".join(size.name for size in plan.sizes),
        sizes=", ".join(f"{size.tensor}.shape[{size.axis}]" for size in plan.sizes),
        grid=_tuple(plan.grid),
        arguments=enclosed("(", arguments, ")", 4),
    )


def _descriptor(d: Descriptor) -> str:
    numbers = (f"{name}={value}" for name, value in d.options.items())
    tensor = (f"dtype={d.dtype}", f"dims={_tuple(d.dims)}", f"strides={_tuple(d.strides)}")
    of_box = (f"box={d.box}", f"element_strides={d.element_strides}")
    return enclosed("descriptor(", (d.tensor, *tensor, *of_box, *numbers), ")", 8)


def _tuple(expressions: tuple[SizeExpression, ...]) -> str:
    """Returns the Python text of a tuple of at least two expressions."""
    return f"({', '.join(expression.text for expression in expressions)})"
