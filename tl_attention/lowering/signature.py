"""The signature of a kernel's prim_func, read off the list of its parameters."""

import tilelang.language as T


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
