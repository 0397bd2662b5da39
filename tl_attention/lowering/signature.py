"""The prim_func of a kernel, whose parameters are read off their list."""

import tilelang.language as T

from tl_attention.problem.variant import Sizes


def prim_func(launch, c, variant, counters):
    """The prim_func: Output = softmax(softmax_scale Q K^T) V, with products accumulated in float32."""
    sizes = Sizes(*(variant.sizes or T.dynamic(", ".join(Sizes._fields))))

    @T.prim_func
    @takes(variant.parameters(*counters), variant, sizes)
    def attention(Q, K, V, Output, softmax_scale, LSE=None, softcap=None, Sinks=None, TileCounter=None):
        launch(
            Q,
            K,
            V,
            Output,
            softmax_scale,
            c,
            **there_are(LSE=LSE, softcap=softcap, Sinks=Sinks, TileCounter=TileCounter),
        )

    return attention


def there_are(**optional):
    """Those of the optional parameters that the kernel has."""
    return {name: parameter for name, parameter in optional.items() if parameter is not None}


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
def aligned(Q, K, V, Output):
    """Rows of strided tensors start at multiples of 16 bytes: without it TileLang would copy element by element."""
    for dim in (0, 1, 2):
        T.assume(Q.strides[dim] % 8 == 0)
        T.assume(K.strides[dim] % 8 == 0)
        T.assume(V.strides[dim] % 8 == 0)
        T.assume(Output.strides[dim] % 8 == 0)
