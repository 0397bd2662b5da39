"""This module checks what stands around a kernel: the prelude, the signature, and the launch, the host's plan."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tl_attention.codeproof.read.nodes import CallNode
from tl_attention.codeproof.read.text import Kernel
from tl_attention.codeproof.tiles.tensors import Tensor
from tl_attention.codeproof.tiles.tiles import Tile
from tl_attention.codeproof.verdict import Unsafe
from tl_attention.launch.plan import Descriptor, HostPlan
from tl_attention.problem.features import MAIN, Parameter
from tl_attention.problem.variant import Variant
from tl_attention.program.limits import buffers_text

# CUDA's CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion.
DATA_TYPES = {"float16": 6, "float32": 7, "bfloat16": 9}
# Types of C++ by which the kernel takes a tensor's address.
POINTERS = {"float16": "half_t*", "bfloat16": "bfloat16_t*", "float32": "float*", "int32": "int*", "int64": "int64_t*"}
NO_SWIZZLE = 0
SWIZZLES = {64: 3, 32: 2}
L2_PROMOTIONS = range(4)
KINDS = {"descriptor": "pointer", "address": "pointer"}

# A kernel's wait for the one before it, and its sign that the one behind it may begin.
WAIT, TRIGGER = "cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion"
# What may stand before the wait: kinds of lines that wait for threads of the cluster alone and read and write no global
# memory, and calls like these.
SETUP = {"", "allocation", "integer", "numbers: declaration", "control"}
SETUP |= {"prefetch", "init fence", "sync", "cluster sync"}
SETUP_CALL = re.compile(rf"\w+\[\d+\]\.init\(\d+\);|{TRIGGER}\(\);")

# What stands before a kernel: headers of TileLang 0.1.15, to the letter.
BEGIN_OF_PRELUDE = """#if defined(_MSC_VER) && !defined(__clang__) && _MSC_VER < 1940
#define _tl_orig_alignas alignas
#define alignas(N) _tl_orig_alignas((N) <= 64 ? (N) : 64)
#include <cuda.h>
#undef alignas
#define alignas _tl_orig_alignas
#endif"""
# Which of these headers a kernel has depends on what it calls.
OF_CALLS = ("instruction/wgmma", "instruction/mma", "intrin", "atomic", "barrier", "copy_sm90", "copy", "cluster")
OF_ALL = ("reduce", "scan", "ldsm", "threadblock_swizzle", "debug")
HEADERS = {"#include <math_constants.h>", *(f"#include <tl_templates/cuda/{name}.h>" for name in (*OF_CALLS, *OF_ALL))}
END_OF_PRELUDE = """#ifdef ENABLE_BF16
#include <tl_templates/cuda/cuda_bf16_fallbacks.cuh>
#endif
"""


def check_prelude(kernel: Kernel, functions: str) -> None:
    """Raises Unsafe unless `functions`, known headers and declarations, and nothing else, stand before the kernels."""
    kernels = [line for line in kernel.lines if "__launch_bounds__" in line]
    headers = [line for line in dict.fromkeys(kernel.lines) if line in HEADERS]
    declared = [re.sub(r"__launch_bounds__\(\d+, \d+\) ", "", line).removesuffix(" {") + ";" for line in kernels]
    known = [functions + BEGIN_OF_PRELUDE, *headers, END_OF_PRELUDE, *declared, kernels[0]]
    for number, (line, expected) in enumerate(zip(kernel.lines, "\n".join(known).split("\n")), 1):
        if line != expected:
            raise Unsafe(f"line {number}: {line[:100]!r} stands before the kernel, expected {expected[:100]!r}")


def check_alone(kernel: Kernel, plan: HostPlan, variant: Variant, early: bool) -> None:
    """Raises Unsafe if another kernel stands before or behind the main one, or is called for, where none must be.

    All threads of the main kernel wait for the one before it, whatever that is, if the schedule is `early`, unless a
    list of packed sequences' tiles, which waits for nothing, is made before it.
    """
    early = early and not variant.packed
    others = {
        "before": (variant.packed, kernel.listing or plan.listing, WAIT),
        "behind": (variant.parts, kernel.merging or plan.merging, TRIGGER),
    }
    for where, (wanted, found, call) in others.items():
        calls = [f"line {number + 1} has {call}" for number in kernel.kinds if call in kernel.lines[number]]
        if not wanted and (found or (calls and not early)):
            raise Unsafe(f"{'another kernel' if found else calls[0]}, expected no kernel {where} the main one")
    if early:
        check_all_wait(kernel)


def check_early(kernel: Kernel, plan: HostPlan) -> None:
    """Raises Unsafe unless those kernels of the launch that wait for the one before them, no other, may begin early."""
    texts = {plan.kernel: "\n".join(kernel.lines[number] for number in kernel.kinds)}
    texts |= {plan.listing.kernel: kernel.listing} if plan.listing else {}
    texts |= {plan.merging.kernel: kernel.merging} if plan.merging else {}
    waiting = sorted(name for name, text in texts.items() if WAIT in text)
    if [*plan.early] != waiting:
        found, expected = (", ".join(names) or "no kernel" for names in (plan.early, waiting))
        raise Unsafe(f"{found} may begin before the one before it has ended, expected {expected}, as that waits")


def check_all_wait(kernel: Kernel) -> None:
    """Raises Unsafe unless all threads wait once for the kernel before this one, behind nothing but its setup."""
    waits = [number for number in sorted(kernel.kinds) if WAIT in kernel.lines[number]]
    if len(waits) != 1:
        raise Unsafe(f"it waits {len(waits)} times for the kernel before it, expected once, as the schedule is early")
    if not any(isinstance(node, CallNode) and node.line == waits[0] for node in kernel.body):
        raise Unsafe(f"line {waits[0] + 1} waits for the kernel before it in a block, expected all threads to wait")
    for number, kind in sorted(kernel.kinds.items()):
        line = kernel.lines[number].strip()
        if number < waits[0] and kind not in SETUP and not SETUP_CALL.fullmatch(line):
            raise Unsafe(f"line {number + 1}: {line[:100]!r} stands before the wait for the kernel before it")


def check_signature(kernel: Kernel, plan: HostPlan, parameters: tuple[Parameter, ...], dtype: str) -> None:
    """Raises Unsafe unless the launch has the kernel's parameters, in order, and the threads that it is made for."""
    names = tuple(parameter.name for parameter in parameters)
    if plan.arguments != names:
        raise Unsafe(f"its caller gives {', '.join(names)}, the host takes {', '.join(plan.arguments)}")
    tensors = {p.name for p in parameters if p.kind != "scalar" and MAIN in p.kernels}
    taken = [(name, KINDS.get(kind, kind)) for kind, name in kernel.signature.parameters]
    given = [(parameter.name, parameter.kind) for parameter in plan.parameters]
    if taken != given or plan.kernel != kernel.signature.name:
        raise Unsafe(f"{kernel.signature.name} takes {taken}, {plan.kernel} is launched with {given}")
    found = {name.removesuffix("_desc") for name, kind in taken if kind == "pointer"}
    if found != tensors:
        raise Unsafe(f"it takes {', '.join(sorted(found))}, expected {', '.join(sorted(tensors))}")
    pointers = {p.name: POINTERS[p.dtype or dtype] for p in parameters if p.kind != "scalar"}
    for name, pointer in kernel.signature.pointers:
        if pointer != pointers[name]:
            raise Unsafe(f"{name} is a {pointer}, expected {pointers[name]}")
    threads = plan.block[0] * plan.block[1] * plan.block[2]
    if threads != kernel.signature.threads:
        raise Unsafe(f"{threads} threads of a block, the kernel is made for {kernel.signature.threads}")
    if {descriptor.name for descriptor in plan.descriptors} != {*kernel.signature.of("descriptor")}:
        raise Unsafe("the launch's descriptors are not those that the kernel takes")


def check_scalars(kernel: Kernel, parameters: tuple[Parameter, ...]) -> None:
    """Raises Unsafe unless the kernel's body names each of the parameters that are numbers."""
    body = "\n".join(kernel.lines[number] for number in kernel.kinds)
    for parameter in parameters:
        if parameter.kind == "scalar" and not re.search(rf"\b{parameter.name}\b", body):
            raise Unsafe(f"it does not read {parameter.name}")


def check_strides(plan: HostPlan, parameters: tuple[Parameter, ...], strided: bool) -> None:
    """Raises Unsafe unless the host reads each stride off its own tensor and dimension, all if `strided`, else none."""
    wanted = {(name, p.name, axis) for p in parameters if strided for axis, name in enumerate(p.strides)}
    found = {(stride.name, stride.tensor, stride.axis) for stride in plan.strides}
    if found != wanted:
        name, tensor, axis = min(found ^ wanted)
        raise Unsafe(f"{name} is the stride {axis} of {tensor}" if found - wanted else f"{name} is not read")


def check_memory(kernel: Kernel, plan: HostPlan, tiles: Mapping[str, Tile]) -> None:
    """Raises Unsafe unless shared memory holds the tiles' buffers alone, each with exactly the tile's slots.

    The last buffer ends dynamic shared memory.
    """
    declared = kernel.declared
    if not declared.dynamic or declared.buffers.keys() != tiles.keys():
        raise Unsafe(f"its buffers are {', '.join(declared.buffers) or 'none'}, expected {', '.join(tiles)}")
    ends = sorted([*declared.buffers.values(), plan.shared_bytes])
    for name, start in declared.buffers.items():
        size, tile = ends[ends.index(start) + 1] - start, tiles[name]
        slot = tile.slot_bytes
        if size != tile.slots * slot or start % (1024 if tile.swizzled or not tile.ring else 128):
            raise Unsafe(
                f"it has {buffers_text(size / slot)} for load_{name.lower()} from byte {start} on, the Program has {tile.slots}"
            )


def check_descriptors(
    plan: HostPlan,
    tiles: Mapping[str, Tile],
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    dtype: str,
) -> None:
    """Raises Unsafe unless each descriptor is of its whole tensor, and its box is a panel of its tile.

    The descriptor must have the tensor as it lies in memory. `sizes` has what is read at run time, by name. TMA fills
    what a box has beyond a tensor's dimensions with 0.
    """
    for size in plan.sizes:
        dims = shapes.get(size.tensor, ())
        if size.axis >= len(dims) or dims[size.axis] != sizes.get(size.name):
            raise Unsafe(f"the size {size.name} is dimension {size.axis} of {size.tensor}")
    for descriptor in plan.descriptors:
        of = "Q" if descriptor.tensor == "Output" else descriptor.tensor
        tile = next(tile for tile in tiles.values() if tile.source == of)
        _check_descriptor(descriptor, tile, tensors[descriptor.tensor], sizes, dtype)


def _check_descriptor(descriptor: Descriptor, tile: Tile, tensor: Tensor, sizes: Mapping[str, int], dtype: str) -> None:
    if descriptor.name != f"{descriptor.tensor}_desc":
        raise Unsafe(f"{descriptor.name} is of {descriptor.tensor}")
    dims = tuple(expression.at(sizes) for expression in descriptor.dims)
    strides = tuple(expression.at(sizes) for expression in descriptor.strides)
    shape, of_strides = tensor.boxed
    in_bytes = tuple(tile.bytes * stride for stride in of_strides)
    wanted = {
        "dimensions": (dims, shape),
        "strides": (strides, in_bytes),
        "box": (descriptor.box, (tile.panel, tile.box_rows, *[1] * (len(shape) - 2))),
        "element strides": (descriptor.element_strides, (1,) * len(shape)),
        "data type": (descriptor.dtype, DATA_TYPES["float32" if tile.ring else dtype]),
        "interleaving": (descriptor.interleave, 0),
        "swizzle": (descriptor.swizzle, SWIZZLES[tile.panel] if tile.swizzled else NO_SWIZZLE),
        "fill beyond the end": (descriptor.oob_fill, 0),
    }
    for what, (found, expected) in wanted.items():
        if found != expected:
            raise Unsafe(f"the {what} of {descriptor.name}: {found}, expected {expected}")
    if descriptor.l2_promotion not in L2_PROMOTIONS:
        raise Unsafe(f"the L2 promotion of {descriptor.name}: {descriptor.l2_promotion}")
