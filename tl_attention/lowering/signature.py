"""The prim_func of a kernel: its parameters are read off their list, and travel by name, None where there is none."""

from types import SimpleNamespace

import tilelang.language as T

from tl_attention.problem.variant import Sizes


def prim_func(launch, c, variant, counters):
    """The prim_func: Output = softmax(softmax_scale Q K^T) V, with products accumulated in float32."""
    sizes = Sizes(*(variant.sizes or T.dynamic(", ".join(Sizes._fields))))

    @T.prim_func
    @takes(variant.parameters(*counters), variant, sizes)
    def attention(Q, K, V, Output, softmax_scale, LSE=None, softcap=None, Sinks=None, TileCounter=None):
        given = SimpleNamespace(
            Q=Q, K=K, V=V, Output=Output, softmax_scale=softmax_scale,
            LSE=LSE, softcap=softcap, Sinks=Sinks, TileCounter=TileCounter,
        )  # fmt: skip
        launch(given, c)

    return attention


def takes(parameters, variant, sizes):
    """Decorates the function under `T.prim_func`: gives each of the parameters its type.

    TileLang makes a parameter of every argument that has a type; the others keep their default.
    """
    dims = variant.dims(sizes)

    def typed(parameter):
        if parameter.kind == "scalar":
            return getattr(T, parameter.dtype)
        shape, dtype = [dims.get(dim, dim) for dim in parameter.dims], parameter.dtype or variant.dtype
        if variant.strided and parameter.strides:
            return T.StridedTensor(shape, [*T.dynamic(", ".join(parameter.strides), "int64"), 1], dtype)
        return T.Tensor(shape, dtype)

    def decorate(function):
        function.__annotations__ = {parameter.name: typed(parameter) for parameter in parameters}
        return function

    return decorate


@T.macro
def aligned(given):
    """Rows of strided tensors start at multiples of 16 bytes: without it TileLang would copy element by element."""
    for dim in (0, 1, 2):
        T.assume(given.Q.strides[dim] % 8 == 0)
        T.assume(given.K.strides[dim] % 8 == 0)
        T.assume(given.V.strides[dim] % 8 == 0)
        T.assume(given.Output.strides[dim] % 8 == 0)
