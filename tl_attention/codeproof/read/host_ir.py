"""This module reads how a kernel is launched off TVM's IR of the host function, which TileLang makes C of and compiles.

The function checks its arguments and gives names to what it reads off them. Then it sets the device, makes each TMA
descriptor and launches the kernels. A node, a name, a call or an order of calls that TileLang 0.1.15 does not write is
refused, so another TileLang gives an error and never a wrong launch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tl_attention.launch.plan import (
    Descriptor,
    Dimension,
    HostPlan,
    LaunchParameter,
    Listing,
    Merging,
    SizeExpression,
    unknown,
)
from tl_attention.problem.shape import DTYPE_BYTES

FUNCTION = "__tvm_ffi_attention"
SET_DEVICE, CREATE_TILED = "__tvm_set_device", "__tvm_tensormap_create_tiled"
# The attribute of a kernel that waits for the launch's one before it.
WAITS = "has_cuda_pdl_sync"
# Of CUDA's enumeration of data types for TMA: that of fp32, in which row vectors are.
FLOAT32 = 7
ELEMENT_BYTES = {FLOAT32: 4}
# The tensor that only the kernel that merges parts takes.
MERGED = "Merged"
# Behind the kernel's own parameters come the cluster's x y z if there is one, the grid's x or x y z, the block's x y z
# and the bytes of dynamic shared memory. By how many these are: how many of them are the cluster's.
CLUSTER = {5: 0, 7: 0, 8: 3, 10: 3}
# These stand around statements, and nothing is done for them.
ATTRIBUTES = ("storage_alignment", "device_id", "device_type", "compute_scope", "tl.assume")
OPERATORS = {"Add": "+", "Sub": "-", "Mul": "*", "FloorDiv": "//", "Div": "//", "FloorMod": "%"}
OPERATORS |= {"EQ": "==", "LE": "<=", "And": "and", "Or": "or"}
# Functions without an effect, and statements.
PURE = {"tvm_struct_get": "get", "handle_add_byte_offset": "add", "isnullptr": "is_null", "if_then_else": "choose"}
PURE |= {"tvm_stack_alloca": "memory"}
CALL, RETURN = "tvm_call_packed", "ret"

# What an argument's names are bound to, by its own name and its number. Fields of DLPack's structures have numbers.
Kind = Literal["pointer", "int", "float"]
FORMS: dict[Kind, dict[str, str]] = {
    "pointer": {
        "{0}_handle.type_index": "int32.get(args, {1}, 13)",
        "{0}_handle": "choose(({0}_handle.type_index == 70), "
        "handle.add(handle.get(args, {1}, 15), 24), handle.get(args, {1}, 15))",
        "attention.{0}_is_null": "bool.is_null({0}_handle)",
        "attention.{0}.shape": "handle.get({0}_handle, 0, 2)",
        "attention.{0}.strides": "handle.get({0}_handle, 0, 3)",
        "{0}": "handle.get({0}_handle, 0, 1)",
    },
    "int": {"{0}.type_index": "int32.get(args, {1}, 13)", "{0}": "int32(int64.get(args, {1}, 15))"},
    "float": {
        "{0}.type_index": "int32.get(args, {1}, 13)",
        "{0}": "choose(({0}.type_index == 3), float32(float64.get(args, {1}, 15)), float32(int64.get(args, {1}, 15)))",
    },
}
NAME = re.compile(r"[A-Za-z_][\w.]*")
DEVICE = "int32.get({0}_handle, 0, 9)"
MEMORY = "handle.memory('tvm_ffi_any', 16)"
SIZE = re.compile(r"int32\(attention\.(\w+)\.shape\[(\d)\]\)")
STRIDE = re.compile(r"int64\.choose\(bool\.is_null\(attention\.(\w+)\.strides\), 1, attention\.\1\.strides\[(\d)\]\)")


def plan_of(module: Any, device: Any) -> HostPlan:
    """Returns the HostPlan of TVM's lowered modules of the host function and of the kernels that it launches.

    Raises InputError for an unknown form.
    """
    functions = [*module.functions.values()]
    if [function.attrs["global_symbol"] for function in functions] != [FUNCTION]:
        raise unknown(f"{len(functions)} functions, expected {FUNCTION}")
    host = _Host(functions[0].body)
    taken = {variable.name_hint: len(function.params) for variable, function in device.functions.items()}
    names = _Names(host.bound, taken)
    functions, made = [function for function, _ in host.calls], 0
    while functions[1 + made : 2 + made] == [CREATE_TILED]:
        made += 1
    launches = host.calls[1 + made : -1]
    # TileLang numbers the kernels of one function: one that lists tiles, the main one, and one that merges parts.
    numbered = [f"{launches[0][0]}_{number}" if number else launches[0][0] for number in range(len(launches))]
    if functions != [SET_DEVICE, *[CREATE_TILED] * made, *numbered, RETURN] or not launches:
        raise unknown(f"calls of {', '.join(functions)}, expected {SET_DEVICE}, any {CREATE_TILED} and one kernel")
    if (host.calls[0][1], host.calls[-1][1]) != (["2", "dev_id"], ["0"]):
        raise unknown(f"{SET_DEVICE} of {', '.join(host.calls[0][1])}, and a return of {', '.join(host.calls[-1][1])}")
    descriptors = tuple(names.descriptor(texts) for _, texts in host.calls[1 : 1 + made])
    merges = len(launches) > 1 and MERGED in launches[-1][1] and len(launches[-1][1]) > 4
    merging = names.merging(*launches.pop()) if merges else None
    main, texts = launches.pop()
    listing = names.listing(*launches.pop()) if launches else None
    if launches or names.memory != [descriptor.name for descriptor in descriptors]:
        raise unknown(f"{len(launches)} kernels more, and the descriptors {', '.join(names.memory)}")
    passed, cluster, grid, numbers = names.launch(main, texts)
    return HostPlan(
        main, names.sizes, descriptors, passed, grid, numbers[:3], cluster, numbers[3], names.arguments, names.strides,
        listing, merging, early(device),
    )  # fmt: skip


def early(device: Any) -> tuple[str, ...]:
    """Returns the names of the kernels that wait for the one before them: TileLang launches those beside that one."""
    return tuple(
        sorted(variable.name_hint for variable, function in device.functions.items() if WAITS in function.attrs)
    )


class _Host:
    """A _Host has the texts of a host function's IR; they name variables, so no two variables may have one name."""

    def __init__(self, body: Any):
        self._variables: dict[str, Any] = {}
        self.bound: dict[str, str] = {}  # what names are bound to
        self.calls: list[tuple[str, list[str]]] = []  # (function, arguments), in order
        self._read(body)

    def _read(self, node: Any) -> None:
        kind = type(node).__name__
        called = node.value.op.name.removeprefix("tirx.") if kind == "Evaluate" and hasattr(node.value, "op") else ""
        if kind == "SeqStmt":
            for statement in node.seq:
                self._read(statement)
        elif kind == "AttrStmt" and node.attr_key in ATTRIBUTES:
            self._read(node.body)
        elif kind == "Bind" and node.var.name not in self.bound:
            self.bound[self._text(node.var)] = self._text(node.value)
        elif called == CALL:
            function, *texts = map(self._text, node.value.args)
            self.calls.append((function.strip("'"), texts))
        elif called == RETURN:
            self.calls.append((RETURN, [*map(self._text, node.value.args)]))
        elif kind == "AssertStmt":
            self._text(node.condition)
        elif kind != "DeclBuffer":
            raise unknown(f"the statement {kind} {node.var.name if kind == 'Bind' else called}".rstrip())

    def _text(self, node: Any) -> str:
        """Returns an expression as text of Python; raises InputError for a node or function that is not known."""
        kind, text = type(node).__name__, self._text
        if kind == "Var" and NAME.fullmatch(node.name) and self._variables.setdefault(node.name, node).same_as(node):
            return str(node.name)
        if kind in ("IntImm", "StringImm"):
            return repr(node.value)
        if kind == "Cast":
            return f"{node.dtype}({text(node.value)})"
        if kind == "Not":
            return f"not {text(node.a)}"
        if kind in OPERATORS:
            return f"({text(node.a)} {OPERATORS[kind]} {text(node.b)})"
        if kind == "Select":
            return f"choose({text(node.condition)}, {text(node.true_value)}, {text(node.false_value)})"
        if kind == "BufferLoad" and node.dtype == "int64" and text(node.buffer.elem_offset) == "0":
            return f"{text(node.buffer.data)}[{', '.join(map(text, node.indices))}]"
        if kind == "Call" and (function := PURE.get(node.op.name.removeprefix("tirx."))):
            return f"{node.dtype}.{function}({', '.join(map(text, node.args))})"
        raise unknown(f"the expression {kind} {getattr(getattr(node, 'op', node), 'name', '')}".rstrip())


class _Names:
    """The _Names of a host function are its arguments, and the sizes, strides and descriptors that it names."""

    def __init__(self, bound: dict[str, str], taken: Mapping[str, int]):
        self._taken = taken  # how many parameters each kernel has
        numbered = [name.removesuffix(".type_index") for name in bound if name.endswith(".type_index")]
        self.arguments = tuple(name.removesuffix("_handle") for name in numbered)
        self.kinds: dict[str, Any] = {}
        expected: dict[str, str] = {}
        for number, name in enumerate(self.arguments):
            is_integer = bound.get(name) == FORMS["int"]["{0}"].format(name, number)
            kind: Kind = "pointer" if name != numbered[number] else "int" if is_integer else "float"
            self.kinds[name] = kind
            expected |= {key.format(name): text.format(name, number) for key, text in FORMS[kind].items()}
        self.tensors = {name for name, kind in self.kinds.items() if kind == "pointer"}
        # The device is that of the first tensor.
        expected["dev_id"] = DEVICE.format(next(iter(self.arguments), ""))
        if missing := [name for name in expected if name not in bound]:
            raise unknown(f"no definition of {missing[0]}")
        self.memory = [name for name, text in bound.items() if text == MEMORY]
        left = {name: text for name, text in bound.items() if text not in (expected.get(name), MEMORY)}
        self.sizes, self.strides = self._dimensions(SIZE, left), self._dimensions(STRIDE, left)
        if left:
            raise unknown(" = ".join(next(iter(left.items()))))
        self.kinds |= dict.fromkeys(self.memory, "pointer")
        self.kinds |= {size.name: "int" for size in self.sizes} | {stride.name: "int64_t" for stride in self.strides}

    def _dimensions(self, form: re.Pattern[str], left: dict[str, str]) -> tuple[Dimension, ...]:
        """Returns the dimensions of tensors that names are bound to, and takes these names from those that are left."""
        matches = {name: match for name, text in left.items() if (match := form.fullmatch(text))}
        dimensions = [
            Dimension(name, match[1], int(match[2])) for name, match in matches.items() if match[1] in self.tensors
        ]
        for dimension in dimensions:
            del left[dimension.name]
        return tuple(dimensions)

    def descriptor(self, texts: Sequence[str]) -> Descriptor:
        """Returns the TMA descriptor of a call; raises InputError for other arguments.

        The call has the arguments desc, dtype, rank, address, dims, strides with the innermost, box, element strides,
        and four enumerations.
        """
        rank = _integer(texts[2]) if len(texts) > 4 else 0
        if len(texts) != 8 + 4 * rank or not 1 <= rank <= 5:
            raise unknown(f"a TMA descriptor of rank {rank} with {len(texts)} arguments, expected {8 + 4 * rank}")
        if texts[0] not in self.memory or texts[3] not in self.tensors:
            raise unknown(f"a TMA descriptor {texts[0]} of {texts[3]}")
        dims, strides, box, element_strides = (texts[4 + rank * part : 4 + rank * (part + 1)] for part in range(4))
        apart = ELEMENT_BYTES.get(_integer(texts[1]), DTYPE_BYTES)
        if _integer(strides[0]) != apart:
            raise unknown(f"elements {strides[0]} bytes apart, expected {apart}")
        return Descriptor(
            texts[0],
            texts[3],
            _integer(texts[1]),
            tuple(map(_expression, dims)),
            # TileLang passes the innermost stride, the element's size, and hands CUDA the ones after it.
            tuple(map(_expression, strides[1:])),
            tuple(map(_integer, box)),
            tuple(map(_integer, element_strides)),
            *map(_integer, texts[-4:]),
        )

    def launch(self, kernel: str, texts: Sequence[str]) -> tuple[Any, ...]:
        """Returns (parameters, cluster, grid, the block's x y z and shared bytes) of the main kernel's launch."""
        split = self._taken.get(kernel, 0)
        launch = [_expression(text) for text in texts[split:]]
        if not split or len(launch) not in CLUSTER:
            raise unknown(f"the kernel takes {split} arguments and {len(launch)} of the launch")
        clusters = CLUSTER[len(launch)]
        cluster = tuple(map(_integer, texts[split : split + clusters])) or (1, 1, 1)
        grid = (*launch[clusters:-4], SizeExpression("1"), SizeExpression("1"))[:3]
        parameters = tuple(LaunchParameter(name, self.kinds[name]) for name in self._known(texts[:split]))
        return parameters, cluster, grid, tuple(map(_integer, texts[-4:]))

    def listing(self, kernel: str, texts: Sequence[str]) -> Listing:
        """Returns the launch of the kernel that lists tiles."""
        split = self._taken.get(kernel, 0)
        return Listing(kernel, self._known(texts[:split]), tuple(map(_integer, texts[split:])))

    def merging(self, kernel: str, texts: Sequence[str]) -> Merging:
        """Returns the launch of the kernel that merges parts; its last arguments are its blocks and threads."""
        return Merging(kernel, self._known(texts[:-4]), _expression(texts[-4]), tuple(map(_integer, texts[-3:])))

    def _known(self, texts: Sequence[str]) -> tuple[str, ...]:
        if missing := [text for text in texts if text not in self.kinds]:
            raise unknown(f"a kernel's parameter {missing[0]}, expected one of {', '.join(sorted(self.kinds))}")
        return tuple(texts)


def _integer(text: str) -> int:
    if not text.isdecimal():
        raise unknown(f"{text} where a number belongs")
    return int(text)


def _expression(text: str) -> SizeExpression:
    """Leaves out casts to 64 bits, which change no value, as every value is a size and far below 2**63."""
    return SizeExpression(ast.unparse(ast.parse(text.replace("int64(", "("))))
