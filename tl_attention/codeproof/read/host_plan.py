"""This module reads how a kernel is launched off the calls that the host code of TileLang 0.1.15 makes.

The first call sets the device, then one call makes each TMA descriptor, and the last call launches the kernel.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal

from tl_attention.codeproof.read.host_calls import Arguments, Call, Dimension, Slot, read_host_source, unknown
from tl_attention.errors import InputError
from tl_attention.problem.shape import DTYPE_BYTES

SET_DEVICE = "__tvm_set_device"
CREATE_TILED = "__tvm_tensormap_create_tiled"
# The tensor that only the kernel that merges parts takes.
MERGED = "Merged"
CREATE_IM2COL = "__tvm_tensormap_create_im2col"
# The kernel's own parameters, the last of which is a scalar of the call, are followed by the cluster's x y z if there is one, the
# grid's x or x y z, the block's x y z and the bytes of dynamic shared memory.
CLUSTER = {5: False, 7: False, 8: True, 10: True}

# The texts of slots: a number, a size, any arithmetic over sizes, a float.
INTEGER = re.compile(r"\(\(int64_t\)(0|[1-9]\d*)\)")
INTEGER_NAME = re.compile(r"\(\(int64_t\)(\w+)\)")
CAST = "(int64_t)"
FLOAT_NAME = re.compile(r"\(\(double\)(\w+)\)")
# DLPack's number of CUDA, and the device of the tensors.
DEVICE = (Slot("int", "((int64_t)2)"), Slot("int", "((int64_t)dev_id)"))
# Something is subtracted from a number alone. From sizes of 0 and up no value may be negative: for others C and Python agree,
# also on division, which C rounds towards 0 and Python down.
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


@dataclass(frozen=True)
class Expression:
    """An Expression is integer arithmetic over the runtime sizes and strides, as Python text.

    None of its values is negative.
    """

    text: str

    def at(self, sizes: Mapping[str, int]) -> int:
        """Returns the expression's value for these sizes and strides, by name; raises KeyError if one is missing."""
        return _value(ast.parse(self.text, mode="eval").body, sizes)


@dataclass(frozen=True)
class Parameter:
    """A Parameter is one parameter of the kernel, a pointer, an integer or a float32, with the name of what it gets.

    A pointer is to a tensor or a descriptor.
    """

    name: str
    kind: Literal["pointer", "int", "int64_t", "float"]


@dataclass(frozen=True)
class Descriptor:
    """A Descriptor holds the arguments of one cuTensorMapEncodeTiled, innermost dimension first.

    `strides` are in bytes and leave out the innermost stride, as CUDA does. The numbers of `dtype`, `interleave`,
    `swizzle`, `l2_promotion` and `oob_fill` are those of CUDA's enumerations.
    """

    name: str
    tensor: str
    dtype: int
    dims: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2_promotion: int
    oob_fill: int

    @property
    def options(self) -> dict[str, int]:
        """Returns interleave, swizzle, L2 promotion and fill by name, in the order of cuTensorMapEncodeTiled."""
        return {field.name: getattr(self, field.name) for field in fields(self)[-4:]}


@dataclass(frozen=True)
class Listing:
    """A Listing is the launch of the kernel that lists the tiles of packed sequences, before the main one.

    `launch` has the numbers behind its parameters: the cluster's if there is one, the grid's and the block's.
    """

    kernel: str
    parameters: tuple[str, ...]
    launch: tuple[int, ...]


@dataclass(frozen=True)
class Merging:
    """A Merging is the launch of the kernel that merges the results of parts of the keys, behind the main one.

    It has a grid of `blocks` blocks, of so many threads.
    """

    kernel: str
    parameters: tuple[str, ...]
    blocks: Expression
    threads: tuple[int, ...]


@dataclass(frozen=True)
class HostPlan:
    """A HostPlan is everything that the host does before and at the launch of one kernel.

    `arguments` names what the host function is called with, in order.
    """

    kernel: str
    sizes: tuple[Dimension, ...]
    descriptors: tuple[Descriptor, ...]
    parameters: tuple[Parameter, ...]
    grid: tuple[Expression, Expression, Expression]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str, ...]
    strides: tuple[Dimension, ...] = ()
    listing: Listing | None = None
    merging: Merging | None = None


def parse_host_source(source: str) -> HostPlan:
    """Parses a kernel's host code in C into the HostPlan of its launch; raises InputError for an unknown form.

    The source is that of `kernel.get_host_source()`.
    """
    arguments, calls = read_host_source(source)
    _check_order([call.function for call in calls])
    *before, last = calls
    merging = _merging(last, arguments) if MERGED in {slot.text for slot in last.slots} else None
    device, *creations, launch = before if merging else calls
    listing = _listing(creations.pop(), arguments) if creations and creations[-1].function != CREATE_TILED else None
    if device.slots != DEVICE or device.descriptor:
        raise unknown(f"{SET_DEVICE} of {', '.join(slot.text for slot in device.slots)}")
    descriptors = tuple(_descriptor(call, arguments) for call in creations)
    names = [*arguments.names, *(descriptor.name for descriptor in descriptors)]
    if len({*names}) != len(names):
        raise unknown(f"the arguments and descriptors {', '.join(names)}, of which two have one name")
    return replace(_launch(launch, arguments, descriptors), listing=listing, merging=merging)


def _check_order(functions: list[str]) -> None:
    """Raises InputError unless the calls set the device, make tiled TMA descriptors and launch one kernel, in order."""
    if CREATE_IM2COL in functions:
        raise InputError("host code: im2col TMA descriptors are not supported, expected tiled ones")
    if functions[-1].startswith("__tvm_"):
        raise unknown(f"no kernel launch after the call of {functions[-1]}")
    made = functions[1:].count(CREATE_TILED)
    launches = functions[1 + made :]
    # TileLang numbers the kernels of one function: one that lists tiles, the main one, and one that merges parts.
    numbered = [f"{launches[0]}_{number}" if number else launches[0] for number in range(min(len(launches), 3))]
    if functions != [SET_DEVICE, *[CREATE_TILED] * made, *numbered]:
        raise unknown(f"calls of {', '.join(functions)}, expected {SET_DEVICE}, any {CREATE_TILED} and one kernel")


def _descriptor(call: Call, arguments: Arguments) -> Descriptor:
    """Parses the host's call that makes a TMA descriptor into a Descriptor; raises InputError for other forms.

    The call has the arguments desc, dtype, rank, address, dims, strides with the innermost, box, element strides, and
    four enumerations.
    """
    slots = call.slots
    rank = _integer(slots[2]) if len(slots) > 4 else 0
    if len(slots) != 8 + 4 * rank or not 1 <= rank <= 5:
        raise unknown(f"a TMA descriptor of rank {rank} with {len(slots)} arguments, expected {8 + 4 * rank}")
    dims, strides, box, element_strides = (slots[4 + rank * part : 4 + rank * (part + 1)] for part in range(4))
    if _integer(strides[0]) != DTYPE_BYTES:
        raise unknown(f"elements {strides[0].text!r} bytes apart, expected {DTYPE_BYTES}")
    if call.descriptor is None:
        raise unknown(f"no memory for the TMA descriptor {slots[0].text!r}")
    known = arguments.size_names | arguments.stride_names
    return Descriptor(
        _pointer(slots[0], {call.descriptor}),
        _pointer(slots[3], arguments.tensors),
        _integer(slots[1]),
        tuple(_arithmetic(slot, known) for slot in dims),
        # TileLang passes the innermost stride, the element's size, and hands CUDA the ones after it.
        tuple(_arithmetic(slot, known) for slot in strides[1:]),
        tuple(_integer(slot) for slot in box),
        tuple(_integer(slot) for slot in element_strides),
        *(_integer(slot) for slot in slots[-4:]),
    )


def _listing(call: Call, arguments: Arguments) -> Listing:
    """Parses the launch of the kernel that lists tiles; raises InputError for other forms."""
    split = next((n for n, slot in enumerate(call.slots) if INTEGER.fullmatch(slot.text)), len(call.slots))
    names = []
    for slot in call.slots[:split]:
        match = INTEGER_NAME.fullmatch(slot.text)
        names.append(match[1] if match and slot.kind == "int" else slot.text)
    known = arguments.tensors | arguments.size_names | arguments.integers | arguments.stride_names
    if call.descriptor or {*names} - known:
        raise unknown(f"{call.function} takes {', '.join(names)}")
    return Listing(call.function, tuple(names), tuple(map(_integer, call.slots[split:])))


def _merging(call: Call, arguments: Arguments) -> Merging:
    """Parses the launch of the kernel that merges parts; raises InputError for other forms."""
    *own, blocks, x, y, z = call.slots
    names = [match[1] if (match := INTEGER_NAME.fullmatch(slot.text)) else slot.text for slot in own]
    if call.descriptor or {*names} - arguments.tensors - arguments.size_names - arguments.stride_names:
        raise unknown(f"{call.function} takes {', '.join(names)}")
    threads = _integer(x), _integer(y), _integer(z)
    return Merging(call.function, tuple(names), _arithmetic(blocks, arguments.size_names), threads)


def _launch(call: Call, arguments: Arguments, descriptors: tuple[Descriptor, ...]) -> HostPlan:
    scalars = {f"((int64_t){name})" for name in arguments.integers}
    of_call = [index for index, slot in enumerate(call.slots) if slot.kind == "float" or slot.text in scalars]
    split = of_call[-1] + 1 if of_call else 0
    own, launch = call.slots[:split], call.slots[split:]
    if not own or len(launch) not in CLUSTER or call.descriptor:
        raise unknown(f"{call.function} takes {len(own)} arguments and {len(launch)} of the launch")
    known = arguments.size_names
    pointers = arguments.tensors | {descriptor.name for descriptor in descriptors}
    cluster = tuple(_integer(slot) for slot in launch[:3]) if CLUSTER[len(launch)] else (1, 1, 1)
    grid = [_arithmetic(slot, known) for slot in launch[3 if CLUSTER[len(launch)] else 0 : -4]]
    threads_x, threads_y, threads_z, shared_bytes = (_integer(slot) for slot in launch[-4:])
    one = Expression("1")
    return HostPlan(
        call.function,
        arguments.sizes,
        descriptors,
        tuple(_parameter(slot, pointers, arguments) for slot in own),
        (grid[0], *(grid[1:] or (one, one))),
        (threads_x, threads_y, threads_z),
        cluster,  # type: ignore[arg-type]
        shared_bytes,
        arguments.names,
        arguments.strides,
    )


def _parameter(slot: Slot, pointers: Set[str], arguments: Arguments) -> Parameter:
    if slot.kind == "pointer":
        return Parameter(_pointer(slot, pointers), slot.kind)
    # Strides have 64 bits, so they are passed as they are.
    if slot.kind == "int" and slot.text in arguments.stride_names:
        return Parameter(slot.text, "int64_t")
    integers = arguments.size_names | arguments.integers
    known = integers if slot.kind == "int" else {*arguments.names} - arguments.tensors - arguments.integers
    match = (INTEGER_NAME if slot.kind == "int" else FLOAT_NAME).fullmatch(slot.text)
    if match is None or match[1] not in known:
        raise unknown(f"the kernel's parameter {slot.text!r}, expected one of {', '.join(sorted(known)) or '(none)'}")
    return Parameter(match[1], slot.kind)


def _pointer(slot: Slot, known: Set[str]) -> str:
    if slot.kind != "pointer" or slot.text not in known:
        raise unknown(f"{slot.text!r} where one of the pointers {', '.join(sorted(known))} belongs")
    return slot.text


def _integer(slot: Slot) -> int:
    match = INTEGER.fullmatch(slot.text)
    if slot.kind != "int" or match is None:
        raise unknown(f"{slot.text!r} where a number belongs")
    return int(match[1])


def _arithmetic(slot: Slot, known: frozenset[str]) -> Expression:
    if slot.kind != "int":
        raise unknown(f"{slot.text!r} where an integer belongs")
    return _expression(slot.text, known)


@lru_cache(maxsize=1024)
def _expression(text: str, known: frozenset[str]) -> Expression:
    """Translates C arithmetic over known names to Python; raises InputError for any other text or name.

    It drops the casts, and turns `/` into `//`. No cast changes a value, as every value is a size and far below 2**63.
    """
    try:
        tree = ast.parse(text.replace(CAST, "").replace("/", "//"), mode="eval")
    except SyntaxError:
        raise unknown(f"the expression {text!r}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            raise unknown(f"{node.id} in {text!r}, expected one of the sizes {', '.join(sorted(known)) or '(none)'}")
        integer = isinstance(node, ast.Constant) and type(node.value) is int
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and not isinstance(node.left, ast.Constant):
            raise unknown(f"Sub in the expression {text!r}")
        if not integer and not isinstance(node, (ast.Expression, ast.Name, ast.Load, ast.BinOp, *OPERATORS)):
            raise unknown(f"{type(node).__name__} in the expression {text!r}")
    return Expression(ast.unparse(tree))


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        found = OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
        if isinstance(found, int) and found < 0:
            raise unknown(f"the expression {ast.unparse(node)!r}, which is {found}")
        return found
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value
