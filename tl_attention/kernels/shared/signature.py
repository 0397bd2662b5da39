"""A kernel's prim_func takes the parameters of the list; they travel by name, and are None where there is none."""

from dataclasses import replace
from types import SimpleNamespace

import tilelang.language as T
from tvm.script.ir_builder import tirx

from tl_attention.kernels.shared.rows import whole_output
from tl_attention.problem.mask import WINDOW, Mask
from tl_attention.problem.variant import KERNEL_PARAMETERS, Sizes


def prim_func(launch, c, variant, asked):
    """Returns the TileLang prim_func of a kernel that computes Output = softmax(softmax_scale Q K^T) V.

    Products are accumulated in float32.
    """
    sizes = Sizes(*(variant.sizes or T.dynamic(", ".join(Sizes._fields))))
    signature = Signature(variant.parameters(*asked), variant, sizes, compiled_in(c, variant, asked))

    @T.prim_func
    @signature.annotated
    def attention(parameters):
        given = parameters.given()
        launch(given, with_window(given, c))

    return attention


def compiled_in(c, variant, asked):
    """Returns, by name, the numbers that a kernel has for parameters which it would take at run time otherwise."""
    return {"workers": c.kernel.workers(variant.sms)} if variant.sms and "workers" in asked else {}


def with_window(given, c):
    """Returns the constants with a mask whose sides are the kernel's arguments where these are read at run time."""
    sides = (getattr(given, side) if side in WINDOW else side for side in (c.mask.left, c.mask.right))
    return replace(c, mask=Mask(*sides)) if c.mask.names else c


class Signature:
    """A Signature holds the parameters of a kernel with their TileLang types.

    TileLang takes the object for a constant, and asks it for them.
    """

    def __init__(self, parameters, variant, sizes, known):
        self._variant, self._dims, self._known = variant, variant.dims(sizes), known
        self._dims.setdefault("heads_kv", T.dynamic("heads_kv"))
        if variant.packed:
            names = [dim for parameter in parameters if parameter.kind == "offsets" for dim in parameter.dims]
            self._dims |= {name: T.dynamic(name) for name in names}
        if variant.loop != "forward":
            self._dims["rows"] = T.dynamic("rows")
        if variant.parts:
            self._dims["results"] = T.dynamic("results")
        self._types = {parameter.name: self._type(parameter) for parameter in parameters}

    def _type(self, parameter):
        if parameter.kind == "scalar":
            return getattr(T, parameter.dtype)()
        shape = [self._dims.get(dim, dim) for dim in parameter.dims]
        dtype = parameter.dtype or self._variant.dtype
        if self._variant.strided and parameter.strides:
            return T.StridedTensor(shape, [*T.dynamic(", ".join(parameter.strides), "int64"), 1], dtype)
        return T.Tensor(shape, dtype)

    def annotated(self, function):
        """Sets this signature as the type of the function's parameter `parameters`, and returns the function."""
        function.__annotations__ = {"parameters": self}
        return function

    def given(self):
        """Returns the traced kernel's arguments as a namespace by parameter name, with None for absent ones."""
        there = self._known | {name: tirx.arg(name, of_type) for name, of_type in self._types.items()}
        return SimpleNamespace(**dict.fromkeys((*(p.name for p in KERNEL_PARAMETERS), "dO")) | there)


@T.macro
def trace(given):
    """Asks for marks, at which threads note the time; they are put into the generated code behind this line."""
    T.call_extern("handle", "tl_attention_trace", given.Trace.data)


def outer_dims(c):
    """Returns the numbers of all dimensions of a tensor with columns but the last."""
    return (0, 1) if c.packed else (0, 1, 2)


@T.macro
def aligned(given, c):
    """Lets TileLang assume that rows of strided tensors start at multiples of 16 bytes.

    Otherwise it would copy element by element.
    """
    for dim in outer_dims(c):
        T.assume(given.Q.strides[dim] % 8 == 0)
        T.assume(given.K.strides[dim] % 8 == 0)
        T.assume(given.V.strides[dim] % 8 == 0)
        if given.dO is not None:
            T.assume(given.dO.strides[dim] % 8 == 0)
        elif c.packed or not c.parts:
            T.assume(whole_output(given, c).strides[dim] % 8 == 0)
