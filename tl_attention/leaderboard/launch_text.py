"""How a submission launches its machine code, as Python text, read off the host code that TileLang generated."""

from __future__ import annotations

from tl_attention.build.compile import CompiledKernel
from tl_attention.proof.generated.host_plan import Descriptor, Expression, parse_host_source

TEXT = '''\
KERNEL_NAME = "{plan.kernel}"
BLOCK = {plan.block}
CLUSTER_DIMS = {plan.cluster}
SHARED_BYTES = {plan.shared_bytes}


def launch_plan(descriptor, Q, K, V, Output, softmax_scale):
    """Returns the grid, and the kernel's arguments in order.

    A TMA descriptor's dimensions are innermost first. Its strides are in bytes, without the innermost one. The last four
    numbers are those of CUDA's enumerations.
    """
    {names} = {sizes}
    return {grid}, ({arguments})
'''
CTYPES = {"pointer": "c_void_p({}.data_ptr())", "int": "c_int32({})", "float": "c_float({})"}


def launch_text(compiled: CompiledKernel) -> str:
    """The constants and the function that the loader of a submission reads. Raises InputError for unknown host code."""
    plan = parse_host_source(compiled.host_source)
    descriptors = {d.name: _descriptor(d) for d in plan.descriptors}
    arguments = [descriptors.get(p.name) or f"ctypes.{CTYPES[p.kind].format(p.name)}" for p in plan.parameters]
    return TEXT.format(
        plan=plan,
        names=", ".join(size.name for size in plan.sizes),
        sizes=", ".join(f"{size.tensor}.shape[{size.axis}]" for size in plan.sizes),
        grid=_tuple(plan.grid),
        arguments=", ".join(arguments),
    )


def _descriptor(d: Descriptor) -> str:
    numbers = ", ".join(f"{name}={value}" for name, value in d.options.items())
    return (
        f"descriptor({d.tensor}, dtype={d.dtype}, dims={_tuple(d.dims)}, strides={_tuple(d.strides)}, box={d.box}, "
        f"element_strides={d.element_strides}, {numbers})"
    )


def _tuple(expressions: tuple[Expression, ...]) -> str:
    """The text of a tuple of expressions, at least two."""
    return f"({', '.join(expression.text for expression in expressions)})"
