"""This module makes a function that launches a kernel of its machine code and its HostPlan, by `launcher.c`.

A plan is handed over as one row of integers. Nothing is done at a launch but what the plan says, which was proved.
"""

from __future__ import annotations

import ast
import ctypes
import functools
from array import array
from collections.abc import Callable, Iterator, Sequence

from tl_attention.errors import InputError
from tl_attention.launch.plan import Dimension, HostPlan, SizeExpression
from tl_attention.problem.features import Parameter
from tl_attention.problem.variant import Variant

LIBRARY = "libcuda.so.1"
# In the order in which the launcher takes them.
DRIVER = (
    *("cuCtxGetDevice", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuModuleLoadData", "cuModuleUnload"),
    *("cuModuleGetFunction", "cuFuncSetAttribute", "cuTensorMapEncodeTiled", "cuLaunchKernelEx", "cuGetErrorName"),
)
TENSOR, INT32, FLOAT32 = range(3)
NUMBERS = {"int32": INT32, "float32": FLOAT32}
# DLPack's type codes, and bits.
TYPES = {"float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "int32": (0, 32), "int64": (0, 64)}
OF_ARGUMENT, OF_SIZE, OF_MAP = range(3)
LENGTH, STRIDE, VALUE = range(3)
NUMBER, SIZE = range(2)
OPERATIONS: dict[type[ast.operator], int] = {ast.Add: 2, ast.Sub: 3, ast.Mult: 4, ast.FloorDiv: 5, ast.Mod: 6}
ONE = SizeExpression("1")
# Kernels are compiled by CUDA 13 or newer, and the driver says its CUDA as 1000 times the major number.
OLDEST_CUDA = 13000
NOT_BUILT = (
    "launch/launcher.c is not built here, expected a C compiler and Python's headers (apt-get install g++ "
    "python3-dev), and then: pip install --editable ."
)


def function_of(
    plan: HostPlan, code: bytes, variant: Variant, parameters: Sequence[Parameter], driver: str = LIBRARY
) -> Callable[..., None]:
    """Returns a function that launches the plan's kernels, of which `code` is the machine code, a cubin.

    The function takes torch's tensors, and numbers, in the order of the parameters. Of a tensor with one dimension more
    than its parameter the first two are read as one, as pages of rows are. It launches on torch's current
    stream of the tensors' device, and raises ValueError for tensors of other shapes or types, and RuntimeError with
    the driver's word where a launch fails. Raises InputError for a plan of other parameters, and for a driver that is
    too old; where the launcher is not built the function does.
    """
    if plan.arguments != tuple(parameter.name for parameter in parameters):
        raise InputError(f"the kernel takes {', '.join(plan.arguments)}: not what its caller gives")
    try:
        from tl_attention.launch import _launcher
    except ImportError:
        return _not_built
    _find_driver(driver)
    words = array("q", _words(plan, variant, parameters))
    kernels = tuple(name.encode() for name, *_ in _launches(plan))
    function: Callable[..., None] = _launcher.function(plan.arguments, kernels, words.tobytes(), code)
    return function


def _not_built(*given: object) -> None:
    raise InputError(f"launcher: {NOT_BUILT}")


@functools.cache
def _find_driver(name: str) -> None:
    """Hands the launcher the driver's functions, once in a process. Without a driver a launch says so.

    Raises InputError for a driver that is too old for the kernels.
    """
    try:
        library, runs = ctypes.CDLL(name), ctypes.c_int()
        addresses = [ctypes.cast(library[function], ctypes.c_void_p).value or 0 for function in DRIVER]
        library.cuDriverGetVersion(ctypes.byref(runs))
    except (OSError, AttributeError):
        return
    if runs.value < OLDEST_CUDA:
        cuda = f"{runs.value // 1000}.{runs.value % 1000 // 10}"
        raise InputError(f"driver: it runs CUDA up to {cuda}, expected one for CUDA 13, which is 580 or newer")
    from tl_attention.launch import _launcher

    _launcher.use_driver(array("Q", addresses).tobytes())


def _launches(plan: HostPlan) -> Iterator[tuple[str, Sequence[str], Sequence[SizeExpression], Sequence[int], int]]:
    """Yields (name, parameters, grid, the block's and the cluster's x y z, shared bytes) of each kernel, in order."""
    if listing := plan.listing:
        *cluster, blocks, x, y, z = listing.launch
        grid = (SizeExpression(str(blocks)), ONE, ONE)
        yield listing.kernel, listing.parameters, grid, (x, y, z, *(cluster or (1, 1, 1))), 0
    names = [parameter.name for parameter in plan.parameters]
    yield plan.kernel, names, plan.grid, (*plan.block, *plan.cluster), plan.shared_bytes
    if merging := plan.merging:
        yield merging.kernel, merging.parameters, (merging.blocks, ONE, ONE), (*merging.threads, 1, 1, 1), 0


def _words(plan: HostPlan, variant: Variant, parameters: Sequence[Parameter]) -> Iterator[int]:
    """Yields the plan's numbers in the order in which the launcher reads them."""
    arguments = {name: number for number, name in enumerate(plan.arguments)}
    maps = {descriptor.name: number for number, descriptor in enumerate(plan.descriptors)}
    integers = (Dimension(p.name, p.name, 0) for p in parameters if p.kind == "scalar" and p.dtype == "int32")
    kinds = ((LENGTH, plan.sizes), (STRIDE, plan.strides), (VALUE, integers))
    read = [(what, size) for what, every in kinds for size in every]
    sizes = {size.name: number for number, (_, size) in enumerate(read)}
    launches = [*_launches(plan)]
    yield from (len(arguments), len(sizes), len(maps), len(launches))
    for parameter in parameters:
        if parameter.kind == "scalar":
            yield NUMBERS[parameter.dtype]
            continue
        yield from (TENSOR, *TYPES[parameter.dtype or variant.dtype], variant.strided and bool(parameter.strides))
        yield len(parameter.dims)
        for dimension in _shape(parameter, variant):
            yield from _expression(SizeExpression(dimension), sizes)
    for what, size in read:
        yield from (what, arguments[size.tensor], size.axis)
    for descriptor in plan.descriptors:
        yield from (arguments[descriptor.tensor], descriptor.dtype, len(descriptor.dims))
        for expression in (*descriptor.dims, *descriptor.strides):
            yield from _expression(expression, sizes)
        yield from (*descriptor.box, *descriptor.element_strides, *descriptor.options.values())
    for name, given, grid, numbers, shared_bytes in launches:
        yield len(given)
        for passed in given:
            # The last are sizes and strides, in 32 or 64 bits.
            of = ((OF_MAP, maps), (OF_ARGUMENT, arguments), (OF_SIZE, sizes))
            yield from next((what, numbered[passed]) for what, numbered in of if passed in numbered)
        for expression in grid:
            yield from _expression(expression, sizes)
        yield from (*numbers, shared_bytes, name in plan.early)


def _shape(parameter: Parameter, variant: Variant) -> list[str]:
    """Returns the parameter's dimensions as expressions of the plan's sizes."""
    named: dict[str | int, object] = {"head_dim": variant.head_dim, "head_dim_v": variant.head_dim_v}
    if variant.group:
        named["heads_kv"] = "heads" if variant.group == 1 else f"heads // {variant.group}"
    else:
        # No other number of heads is proved.
        named["heads"] = "heads_kv * group"
    known = variant.dims(variant.sizes) if variant.sizes else named
    return [str(known.get(dimension, dimension)) for dimension in parameter.dims]


def _expression(expression: SizeExpression, sizes: dict[str, int]) -> list[int]:
    """Returns an expression as (number of steps, operation and operand of each) for a stack machine."""

    def steps(node: ast.expr) -> Iterator[int]:
        if isinstance(node, ast.BinOp):
            yield from (*steps(node.left), *steps(node.right), OPERATIONS[type(node.op)], 0)
        elif isinstance(node, ast.Name):
            yield from (SIZE, sizes[node.id])
        else:
            assert isinstance(node, ast.Constant) and isinstance(node.value, int)
            yield from (NUMBER, node.value)

    found = [*steps(ast.parse(expression.text, mode="eval").body)]
    return [len(found) // 2, *found]
