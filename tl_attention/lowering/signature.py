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
        return T.Tensor([dims.get(dim, dim) for dim in parameter.dims], parameter.dtype or variant.dtype)

    def decorate(function):
        function.__annotations__ = {parameter.name: typed(parameter) for parameter in parameters}
        return function

    return decorate
