"""How a submission launches its machine code, as Python text, read off the host code that TileLang generated."""

from __future__ import annotations

import re

from tl_attention.build.compile import CompiledKernel
from tl_attention.errors import InputError
from tl_attention.proof.generated.host_plan import Descriptor, Expression, HostPlan, parse_host_source

SIGNATURE = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+), \d+\) (\w+)\((.*)\) \{')
TEXT = '''\
KERNEL_NAME = "{plan.kernel}"
# The kernel's parameters in order: a tensor's address, a TMA descriptor by value, an int32 or a float32.
PARAMETERS = {parameters}
# The tensor and the dimension that each size is read from.
SIZES = {sizes}
BLOCK = {plan.block}
CLUSTER_DIMS = {plan.cluster}
SHARED_BYTES = {plan.shared_bytes}


def launch_plan({names}):
    """Returns the grid, and the arguments of cuTensorMapEncodeTiled for each TMA descriptor.

    Dimensions are innermost first; strides are in bytes, without the innermost. dtype and options (interleave, swizzle,
    L2 promotion, fill beyond the end) are the numbers of CUDA's enumerations.
    """
    grid = {grid}
    descriptors = dict({descriptors})
    return grid, descriptors
'''


def launch_text(compiled: CompiledKernel) -> str:
    """The constants and the function that the loader of a submission reads.

    Raises InputError for host code of an unknown form, or another signature of the kernel than the host's call has.
    """
    plan = parse_host_source(compiled.host_source)
    return TEXT.format(
        plan=plan,
        parameters=_parameters(compiled.source, plan),
        sizes={size.name: (size.tensor, size.axis) for size in plan.sizes},
        names=", ".join(size.name for size in plan.sizes),
        grid=_tuple(plan.grid),
        descriptors=", ".join(f"{d.name}={_descriptor(d)}" for d in sorted(plan.descriptors, key=lambda d: d.name)),
    )


def _parameters(source: str, plan: HostPlan) -> tuple[tuple[str, str], ...]:
    """(name, kind) of the kernel's parameters: what the host passes, held to the CUDA's signature."""
    descriptors, kinds = {d.name for d in plan.descriptors}, {"int": "int", "float": "float", "pointer": "tensor"}
    passed = tuple((p.name, "descriptor" if p.name in descriptors else kinds[p.kind]) for p in plan.parameters)
    found = SIGNATURE.search(source)
    taken = [text.split()[-1] for text in found[3].split(", ")] if found else []
    if found is None or found[2] != plan.kernel or taken != [name for name, _ in passed]:
        raise InputError(f"the generated CUDA does not define {plan.kernel} with the parameters that its host passes")
    return passed


def _descriptor(d: Descriptor) -> str:
    return (
        f'dict(tensor="{d.tensor}", dtype={d.dtype}, dims={_tuple(d.dims)}, strides={_tuple(d.strides)}, box={d.box}, '
        f"element_strides={d.element_strides}, options={(*d.options.values(),)})"
    )


def _tuple(expressions: tuple[Expression, ...]) -> str:
    """The text of a tuple of expressions, at least two."""
    return f"({', '.join(expression.text for expression in expressions)})"
