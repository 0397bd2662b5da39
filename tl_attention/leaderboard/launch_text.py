"""What a submission needs beside the generated CUDA to build and launch it, as the parts of its template."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tl_attention.build.compile import CompiledKernel
from tl_attention.errors import InputError
from tl_attention.leaderboard.python_text import literal, tuple_text
from tl_attention.lowering.base import FAST_MATH, NO_BOUND_CHECKS, NO_INIT_CHECKS
from tl_attention.problem.variant import Parameter
from tl_attention.proof.generated.host_plan import HostPlan, parse_host_source

NVCC_FLAGS = ("-cubin", "-O3", "-std=c++20", "-gencode", "arch=compute_90a,code=sm_90a")
FAST_MATH_FLAG = "--use_fast_math"

SIGNATURE = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+), \d+\) (\w+)\((.*)\) \{')
PARAMETER_KINDS = {
    "tensor": re.compile(r"(?:const )?half_t\* __restrict__ (\w+)"),
    "descriptor": re.compile(r"__grid_constant__ const CUtensorMap (\w+)"),
    "int": re.compile(r"int (\w+)"),
    "float": re.compile(r"float (\w+)"),
}


def launch_parts(compiled: CompiledKernel, pass_configs: Mapping[str, object]) -> dict[str, str]:
    """{placeholder: text} of templates/kernel.py.in and build.py.in, headers left out.

    Raises InputError when what TileLang generated cannot be packed: an unknown form of its host code or signature.
    """
    if '"""' in compiled.source:
        raise InputError('the generated CUDA holds """, so it cannot be quoted in Python')
    plan = parse_host_source(compiled.host_source)
    return {
        "kernel_source": compiled.source,
        "kernel_name": plan.kernel,
        "parameters": literal(_parameters(compiled, plan)),
        "sizes": literal({size.name: (size.tensor, size.axis) for size in plan.sizes}),
        "size_names": ", ".join(size.name for size in plan.sizes),
        "block": literal(plan.block),
        "cluster": literal(plan.cluster),
        "shared_bytes": str(plan.shared_bytes),
        "grid": tuple_text(extent.text for extent in plan.grid),
        "descriptors": _descriptors(plan),
        "nvcc_flags": literal((*NVCC_FLAGS, *fast_math_flags(pass_configs))),
    }


def fast_math_flags(pass_configs: Mapping[str, object]) -> tuple[str, ...]:
    """The compiler's flags that TileLang's options turn into; only fast math is known to become exactly one."""
    # TileLang's checks are in the generated code or not.
    unknown = sorted(set(pass_configs) - {FAST_MATH, NO_BOUND_CHECKS, NO_INIT_CHECKS})
    if unknown:
        raise InputError(f"pass option {unknown[0]!r} is not supported in a submission that carries CUDA")
    return (FAST_MATH_FLAG,) if pass_configs.get(FAST_MATH) else ()


def _parameters(compiled: CompiledKernel, plan: HostPlan) -> tuple[tuple[str, str], ...]:
    """(name, kind) of the kernel's parameters, read off its CUDA signature and held against the host's call."""
    match = SIGNATURE.search(compiled.source)
    if match is None or match[2] != plan.kernel:
        raise InputError(f"the generated CUDA does not define {plan.kernel} in the form that TileLang 0.1.15 writes")
    found = tuple(_parameter(text) for text in match[3].split(", "))
    expected = tuple(parameter.name for parameter in plan.parameters)
    taken = tuple(name for name, _ in found)
    if taken != expected:
        raise InputError(f"the generated CUDA takes {', '.join(taken)}, its host passes {', '.join(expected)}")
    threads = plan.block[0] * plan.block[1] * plan.block[2]
    if int(match[1]) != threads:
        raise InputError(f"the generated CUDA is bounded to {match[1]} threads, its host launches {threads}")
    _check_names(found, plan, compiled.parameters)
    return found


def _parameter(text: str) -> tuple[str, str]:
    for kind, pattern in PARAMETER_KINDS.items():
        if match := pattern.fullmatch(text):
            return match[1], kind
    raise InputError(f"the generated CUDA has a parameter {text[:80]!r} of an unknown kind")


def _check_names(found: tuple[tuple[str, str], ...], plan: HostPlan, parameters: tuple[Parameter, ...]) -> None:
    """Each name must mean something where the submission looks it up."""
    known = {
        "tensor": {p.name for p in parameters if p.kind in ("input", "output")},
        "descriptor": {descriptor.name for descriptor in plan.descriptors},
        "int": {size.name for size in plan.sizes},
        "float": {p.name for p in parameters if p.kind == "scalar"},
    }
    read = [(size.tensor, "tensor") for size in plan.sizes]
    read += [(descriptor.tensor, "tensor") for descriptor in plan.descriptors]
    for name, kind in (*found, *read):
        if name not in known[kind]:
            raise InputError(f"the kernel takes the {kind} {name}, expected one of {', '.join(sorted(known[kind]))}")


def _descriptors(plan: HostPlan) -> str:
    """The descriptors as the text of a dict, sorted by name, indented for the body of launch_plan."""
    lines = ["dict("]
    # As the formatter has it: a call within a call, alone, has no comma behind it.
    comma = "," if len(plan.descriptors) > 1 else ""
    for descriptor in sorted(plan.descriptors, key=lambda descriptor: descriptor.name):
        lines += [
            f"        {descriptor.name}=dict(",
            f'            tensor="{descriptor.tensor}",',
            f"            dtype={descriptor.dtype},",
            f"            dims={tuple_text(extent.text for extent in descriptor.dims)},",
            f"            strides={tuple_text(extent.text for extent in descriptor.strides)},",
            f"            box={descriptor.box},",
            f"            element_strides={descriptor.element_strides},",
            *(f"            {option}={value}," for option, value in descriptor.options.items()),
            f"        ){comma}",
        ]
    return "\n".join([*lines, "    )"])
