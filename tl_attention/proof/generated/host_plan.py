"""Reads how a kernel is launched off the host C code that TileLang 0.1.15 generates.

The host code fills the slots of an argument stack one by one and then calls a function: one call per TMA descriptor,
one for the kernel. Whatever does not have exactly that form is refused, so a TileLang that writes its host code in
another way gives an error and never a wrong launch.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Literal

from tl_attention.errors import InputError

SET_DEVICE = "__tvm_set_device"
CREATE_TILED = "__tvm_tensormap_create_tiled"
CREATE_IM2COL = "__tvm_tensormap_create_im2col"
# The kernel's own parameters, the last of which is a float, are followed by the cluster's x y z if there is one, the
# grid's x or x y z, the block's x y z and the bytes of dynamic shared memory.
CLUSTER = {5: False, 7: False, 8: True, 10: True}

SLOT = re.compile(r"  \(\(\(TVMFFIAny\*\)stack_ffi_any\)\[(\d+)\]\.(v_int64|v_ptr|v_float64)\) = (.+);")
SLOT_HEADER = re.compile(r" +\(\(\(TVMFFIAny\*\)stack_ffi_any\)\[\d+\]\.(?:type_index|zero_padding)\) = \d+;")
CALL = re.compile(r"  if \(TVMFFIFunctionCall\((\w+)_packed, \(TVMFFIAny\*\) stack_ffi_any, (\d+), &\w+\) != 0\) \{")
SIZE = re.compile(r"  int32_t (\w+) = \(\(int32_t\)\(\(int64_t\*\)attention_(\w+)_shape\)\[(\d+)\]\);")
CAST = re.compile(r"\((?:int32_t|int64_t|double)\)")
# No subtraction: from sizes of 0 and up these never give a negative value, and for those C and Python agree, also on
# division, which C rounds towards 0 and Python down.
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


@dataclass(frozen=True)
class Expression:
    """Integer arithmetic over the runtime sizes, as Python text; none of its values is negative."""

    text: str

    @property
    def names(self) -> frozenset[str]:
        """The sizes that it reads."""
        return frozenset(node.id for node in ast.walk(ast.parse(self.text)) if isinstance(node, ast.Name))

    @property
    def constant(self) -> int | None:
        """The value if it reads no size, else None."""
        return None if self.names else self.at({})

    def at(self, sizes: Mapping[str, int]) -> int:
        """The value for these sizes; KeyError if one is missing."""
        return _value(ast.parse(self.text, mode="eval").body, sizes)


@dataclass(frozen=True)
class Size:
    """A size read at run time: dimension `axis` of a tensor."""

    name: str
    tensor: str
    axis: int


@dataclass(frozen=True)
class Parameter:
    """One parameter of the kernel: a `pointer` (a tensor or a descriptor, by name), an int32 or a float32."""

    name: str
    kind: Literal["pointer", "int", "float"]


@dataclass(frozen=True)
class Descriptor:
    """The arguments of one cuTensorMapEncodeTiled, innermost dimension first.

    `strides` are in bytes and leave out the innermost one, as CUDA does. The numbers of `dtype`, `interleave`,
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
        """The enumerations, by name, in the order of cuTensorMapEncodeTiled."""
        return {field.name: getattr(self, field.name) for field in fields(self)[-4:]}


@dataclass(frozen=True)
class HostPlan:
    """Everything that the host does before and at the launch of one kernel."""

    kernel: str
    sizes: tuple[Size, ...]
    descriptors: tuple[Descriptor, ...]
    parameters: tuple[Parameter, ...]
    grid: tuple[Expression, Expression, Expression]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int


def parse_host_source(source: str) -> HostPlan:
    """The launch that `kernel.get_host_source()` describes. Raises InputError if it has an unknown form."""
    sizes = tuple(Size(name, tensor, int(axis)) for name, tensor, axis in SIZE.findall(source))
    known = frozenset(size.name for size in sizes)
    descriptors: list[Descriptor] = []
    launches: list[tuple[str, list[_Slot]]] = []
    for function, slots in _calls(source):
        if launches:
            raise _unknown(f"a call of {function} after the kernel {launches[0][0]}, expected one kernel and no more")
        if function == SET_DEVICE:
            continue
        if function == CREATE_TILED:
            descriptors.append(_descriptor(slots, known))
        elif function == CREATE_IM2COL:
            raise InputError("host code: im2col TMA descriptors are not supported, expected tiled ones")
        elif function.startswith("__tvm_"):
            raise _unknown(f"a call of {function}")
        else:
            launches.append((function, slots))
    if not launches:
        raise _unknown("no kernel launch")
    return _launch(*launches[0], sizes, tuple(descriptors))


@dataclass(frozen=True)
class _Slot:
    """One argument as written: the member of the union that is set, and its C text."""

    member: str
    text: str

    def expression(self, known: frozenset[str]) -> Expression:
        if self.member != "v_int64":
            raise _unknown(f"{self.text!r} where an integer belongs")
        return _expression(self.text, known)

    def integer(self) -> int:
        value = self.expression(frozenset()).constant
        assert value is not None, "an expression over no names is a constant"
        return value

    def pointer(self) -> str:
        if self.member != "v_ptr" or not self.text.isidentifier():
            raise _unknown(f"{self.text!r} where a pointer belongs")
        return self.text


def _calls(source: str) -> Iterator[tuple[str, list[_Slot]]]:
    """(function, arguments) of each call, in order."""
    slots: dict[int, _Slot] = {}
    for line in source.splitlines():
        if match := SLOT.fullmatch(line):
            slots[int(match[1])] = _Slot(match[2], match[3])
        elif match := CALL.fullmatch(line):
            count = int(match[2])
            if not set(range(count)) <= set(slots):
                raise _unknown(f"{match[1]} takes {count} arguments, and not all were set")
            yield match[1], [slots[index] for index in range(count)]
            slots = {}
        elif ("stack_ffi_any)[" in line and not SLOT_HEADER.fullmatch(line)) or "TVMFFIFunctionCall(" in line:
            raise _unknown(f"the line {line.strip()[:120]!r}")


def _descriptor(slots: list[_Slot], known: frozenset[str]) -> Descriptor:
    """desc, dtype, rank, address, dims, strides with the innermost, box, element strides, four enumerations."""
    rank = slots[2].integer() if len(slots) > 4 else 0
    if len(slots) != 8 + 4 * rank or not 1 <= rank <= 5:
        raise _unknown(f"a TMA descriptor of rank {rank} with {len(slots)} arguments, expected {8 + 4 * rank}")
    dims, strides, box, element_strides = (slots[4 + rank * part : 4 + rank * (part + 1)] for part in range(4))
    return Descriptor(
        slots[0].pointer(),
        slots[3].pointer(),
        slots[1].integer(),
        tuple(slot.expression(known) for slot in dims),
        # TileLang passes the innermost stride, the element's size, and hands CUDA the ones after it.
        tuple(slot.expression(known) for slot in strides[1:]),
        tuple(slot.integer() for slot in box),
        tuple(slot.integer() for slot in element_strides),
        *(slot.integer() for slot in slots[-4:]),
    )


def _launch(kernel: str, slots: list[_Slot], sizes: tuple[Size, ...], descriptors: tuple[Descriptor, ...]) -> HostPlan:
    known = frozenset(size.name for size in sizes)
    floats = [index for index, slot in enumerate(slots) if slot.member == "v_float64"]
    split = floats[-1] + 1 if floats else 0
    own, launch = slots[:split], slots[split:]
    if not own or len(launch) not in CLUSTER:
        raise _unknown(f"{kernel} takes {len(own)} arguments and {len(launch)} of the launch")
    cluster = tuple(slot.integer() for slot in launch[:3]) if CLUSTER[len(launch)] else (1, 1, 1)
    grid = [slot.expression(known) for slot in launch[3 if CLUSTER[len(launch)] else 0 : -4]]
    threads_x, threads_y, threads_z, shared_bytes = (slot.integer() for slot in launch[-4:])
    one = Expression("1")
    return HostPlan(
        kernel,
        sizes,
        descriptors,
        tuple(_parameter(slot) for slot in own),
        (grid[0], *(grid[1:] or (one, one))),
        (threads_x, threads_y, threads_z),
        cluster,  # type: ignore[arg-type]
        shared_bytes,
    )


def _parameter(slot: _Slot) -> Parameter:
    kinds: dict[str, Literal["pointer", "int", "float"]] = {"v_ptr": "pointer", "v_int64": "int", "v_float64": "float"}
    name = CAST.sub("", slot.text).strip("()")
    if not name.isidentifier():
        raise _unknown(f"the kernel's parameter {slot.text!r}, expected a plain name")
    return Parameter(name, kinds[slot.member])


def _expression(text: str, known: frozenset[str]) -> Expression:
    """C text to Python text: casts away, as every value is a size and far below 2**63, and `/` to `//`."""
    try:
        tree = ast.parse(CAST.sub("", text).replace("/", "//"), mode="eval")
    except SyntaxError:
        raise _unknown(f"the expression {text!r}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known:
            raise _unknown(f"{node.id} in {text!r}, expected one of the sizes {', '.join(sorted(known)) or '(none)'}")
        integer = isinstance(node, ast.Constant) and type(node.value) is int
        if not integer and not isinstance(node, (ast.Expression, ast.Name, ast.Load, ast.BinOp, *OPERATORS)):
            raise _unknown(f"{type(node).__name__} in the expression {text!r}")
    return Expression(ast.unparse(tree))


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value


def _unknown(what: str) -> InputError:
    return InputError(f"host code: {what}: not in the form that TileLang 0.1.15 writes, so the launch cannot be read")
