"""This module says how the host launches a kernel: a HostPlan, which is kept as JSON with a line for each value.

`host_ir.py` reads it off TVM's IR of the host function.
"""

from __future__ import annotations

import ast
import functools
import json
import operator
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass, fields
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from tl_attention.errors import InputError

# Something is subtracted from a number alone. From sizes of 0 and up no value may be negative: C and Python agree on
# the others, also on division, which C rounds towards 0 and Python down.
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Dimension:
    """A Dimension is a size, or a stride in elements, that the host reads at run time off axis `axis` of a tensor."""

    name: str
    tensor: str
    axis: int


@dataclass(frozen=True)
class SizeExpression:
    """A SizeExpression is integer arithmetic over what the host reads at run time, as Python text, never negative."""

    text: str

    def at(self, sizes: Mapping[str, int]) -> int:
        """Returns the expression's value for these sizes and strides, by name; raises KeyError if one is missing."""
        return _value(ast.parse(self.text, mode="eval").body, sizes)

    def check(self, known: Set[str]) -> None:
        """Raises InputError for arithmetic that is not known, or a name that is none of these."""
        for node in _nodes(self.text):
            if isinstance(node, ast.Name) and node.id not in known:
                raise unknown(f"{node.id} in {self.text!r}, expected one of {', '.join(sorted(known)) or '(none)'}")
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and not isinstance(node.left, ast.Constant):
                raise unknown(f"Sub in the expression {self.text!r}")
            integer = isinstance(node, ast.Constant) and type(node.value) is int
            if not integer and not isinstance(node, (ast.Expression, ast.Name, ast.Load, ast.BinOp, *OPERATORS)):
                raise unknown(f"{type(node).__name__} in the expression {self.text!r}")


@dataclass(frozen=True)
class LaunchParameter:
    """A LaunchParameter is a pointer, an integer or a float32 that the kernel takes, with the name of what it gets."""

    name: str
    kind: Literal["pointer", "int", "int64_t", "float"]  # a pointer is to a tensor or a descriptor


@dataclass(frozen=True)
class Descriptor:
    """A Descriptor holds the arguments of one cuTensorMapEncodeTiled, innermost dimension first."""

    name: str
    tensor: str
    dtype: int  # a number of CUDA's enumeration
    dims: tuple[SizeExpression, ...]
    strides: tuple[SizeExpression, ...]  # in bytes, without the innermost, as CUDA has them
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    # These are numbers of CUDA's enumerations.
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
    """A Listing is the launch of the kernel that lists the tiles of packed sequences, before the main one."""

    kernel: str
    parameters: tuple[str, ...]
    launch: tuple[int, ...]  # the numbers behind the parameters: the cluster's if there is one, the grid's, the block's


@dataclass(frozen=True)
class Merging:
    """A Merging is the launch of the kernel that merges the results of parts of the keys, behind the main one."""

    kernel: str
    parameters: tuple[str, ...]
    blocks: SizeExpression  # of the grid
    threads: tuple[int, ...]  # of a block


@dataclass(frozen=True)
class HostPlan:
    """A HostPlan is everything that the host does before and at the launch of one kernel."""

    kernel: str
    sizes: tuple[Dimension, ...]
    descriptors: tuple[Descriptor, ...]
    parameters: tuple[LaunchParameter, ...]
    grid: tuple[SizeExpression, SizeExpression, SizeExpression]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str, ...]  # names of what the host function is called with, in order
    strides: tuple[Dimension, ...]
    listing: Listing | None
    merging: Merging | None
    early: tuple[str, ...]  # kernels that may begin before the launch's one before them has ended, for which they wait

    def __post_init__(self) -> None:
        # The numbers that a call gives stand beside sizes in a grid.
        given = {parameter.name for parameter in self.parameters if parameter.kind == "int"} & {*self.arguments}
        sizes = {size.name for size in self.sizes}
        strides = {stride.name for stride in self.strides}
        for expression in (*self.grid, *([self.merging.blocks] if self.merging else [])):
            expression.check(sizes | given)
        for descriptor in self.descriptors:
            for expression in (*descriptor.dims, *descriptor.strides):
                expression.check(sizes | strides)
        names = [*self.arguments, *(descriptor.name for descriptor in self.descriptors)]
        if len({*names}) != len(names):
            raise unknown(f"the arguments and descriptors {', '.join(names)}, of which two have one name")


def to_json(plan: HostPlan) -> str:
    """Returns a plan as JSON."""
    return json.dumps(asdict(plan), indent=1)


def from_json(text: str) -> HostPlan:
    """Returns the plan that `to_json` made this text of; raises InputError for any other text."""
    try:
        plan = _adapter().validate_json(text, strict=True)
    except ValidationError as error:
        [first, *_] = error.errors()
        of_plan = first.get("ctx", {}).get("error")
        place = ".".join(map(str, first["loc"])) or "its text"
        raise of_plan if isinstance(of_plan, InputError) else unknown(f"{place}: {first['msg']}") from None
    if to_json(plan) != text:
        raise unknown("its text is none of a plan's")
    return plan


def unknown(what: str) -> InputError:
    """Returns the InputError that host code is not as TileLang 0.1.15 makes it; `what` names what is at fault."""
    return InputError(f"host code: {what}: not as TileLang 0.1.15 makes it, so the launch cannot be read")


@functools.cache
def _adapter() -> TypeAdapter[HostPlan]:
    return TypeAdapter(HostPlan)


@functools.lru_cache(maxsize=1024)
def _nodes(text: str) -> tuple[ast.AST, ...]:
    try:
        return tuple(ast.walk(ast.parse(text, mode="eval")))
    except SyntaxError:
        raise unknown(f"the expression {text!r}") from None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.BinOp):
        value = OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
        if isinstance(value, int) and value < 0:
            raise unknown(f"the expression {ast.unparse(node)!r}, which is {value}")
        return value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    assert isinstance(node, ast.Constant) and isinstance(node.value, int)
    return node.value
