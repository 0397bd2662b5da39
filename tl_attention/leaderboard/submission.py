"""Packs a schedule into one self-contained file for the leaderboard, in two forms.

`tilelang` carries the TileLang program, to be read; `cuda` carries the CUDA generated from it, to run where there is
no TileLang. The same schedule and TileLang version give the same text on every machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from string import Template
from typing import Any, Literal

from tl_attention.compile import FAST_MATH, NO_BOUND_CHECKS, NO_INIT_CHECKS, TARGET, compile_kernel, pass_configs
from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import FORBIDDEN_WORD, violations
from tl_attention.leaderboard.headers import digests, header_closure, pack, tilelang_include_folders
from tl_attention.host_plan import HostPlan, parse_host_source
from tl_attention.lowering import kernel_arguments
from tl_attention.preflight import refuse_unless_safe
from tl_attention.schedule import Schedule
from tl_attention.schedule_file import load

Form = Literal["tilelang", "cuda"]

PACKAGE = Path(__file__).parents[1]
TEMPLATES = Path(__file__).parent / "templates"
# The leaderboard's only problem: fp16, non-causal, this head_dim.
HEAD_DIM = 128
TENSORS = ("Q", "K", "V", "Output")
# The kernel of each lowering, what it imports before it.
PIPELINED = ("kernel/macros.py", "kernel/pipelined.py")
KERNEL_FILES = {
    "pipelined": PIPELINED,
    "inferred": PIPELINED,
    "warp_specialized": (
        "warpgroup.py", "kernel/macros.py", "kernel/device_code.py", "kernel/tiles.py", "kernel/vector.py",
        "kernel/output.py", "kernel/warp_specialized.py",
    ),
}
# Columns of a constant, left of which its name still fits into 120.
WIDTH = 100

NVCC_FLAGS = ("-cubin", "-O3", "-std=c++20", "-gencode", "arch=compute_90a,code=sm_90a")

SIGNATURE = re.compile(r'extern "C" __global__ void __launch_bounds__\((\d+), \d+\) (\w+)\((.*)\) \{')
PARAMETER_KINDS = {
    "tensor": re.compile(r"(?:const )?half_t\* __restrict__ (\w+)"),
    "descriptor": re.compile(r"__grid_constant__ const CUtensorMap (\w+)"),
    "int": re.compile(r"int (\w+)"),
    "float": re.compile(r"float (softmax_scale)"),
}


def write(schedule_path: Path, output: Path, embed: Form) -> list[str]:
    """Make the submission of a schedule file and write it, unless it breaks a rule of the servers.

    Returns those rules, one sentence each; with any, nothing is written. Raises InputError for a bad schedule, and
    ScheduleRefused for one that cannot run.
    """
    schedule = load(schedule_path)
    refuse_unless_safe(schedule, HEAD_DIM)
    if schedule.kernel.tile_scheduler == "dynamic":
        raise InputError(
            f"{schedule_path}: kernel.tile_scheduler: dynamic takes a counter that a submission does not pass, "
            "expected static or one_tile"
        )
    form = {"tilelang": tilelang_form, "cuda": cuda_form}.get(embed)
    if form is None:
        raise InputError(f"embed: {embed!r} is unknown, expected tilelang or cuda")
    text = form(schedule, name=Path(schedule_path).stem).encode()
    broken = violations(text)
    if not broken:
        try:
            output.write_bytes(text)
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror}") from None
    return broken


def tilelang_form(schedule: Schedule, *, name: str) -> str:
    """The file that carries the TileLang program; `name` is the schedule's, as in schedules/NAME.yaml."""
    return _fill(
        "tilelang.py.in",
        name=_checked_name(name),
        label=schedule.label,
        version=_tilelang_version(),
        program=_program_text(schedule),
        target=_literal(TARGET),
        pass_configs=_literal(pass_configs(schedule)),
        schedule=_call(kernel_arguments(schedule)),
    )


def cuda_form(schedule: Schedule, *, name: str) -> str:
    """The file that carries the generated CUDA, its headers and its launch; `name` as in `tilelang_form`.

    Raises InputError when what TileLang generated cannot be packed: an unknown form of its host code or signature.
    """
    compiled = compile_kernel(schedule, head_dim=HEAD_DIM, dtype="float16", causal=False)
    plan = parse_host_source(compiled.host_source)
    headers = header_closure(compiled.source, tilelang_include_folders())
    if "'''" in compiled.source:
        raise InputError("the generated CUDA holds ''', so it cannot be quoted in Python")
    return _fill(
        "cuda.py.in",
        name=_checked_name(name),
        label=schedule.label,
        version=_tilelang_version(),
        head_dim=str(HEAD_DIM),
        kernel_source=compiled.source.strip(),
        kernel_name=plan.kernel,
        parameters=_literal(_parameters(compiled.source, plan)),
        sizes=_literal({size.name: (size.tensor, size.axis) for size in plan.sizes}),
        size_names=", ".join(size.name for size in plan.sizes),
        block=_literal(plan.block),
        cluster=_literal(plan.cluster),
        shared_bytes=str(plan.shared_bytes),
        grid=_tuple(extent.text for extent in plan.grid),
        descriptors=_descriptors(plan),
        nvcc_flags=_literal(_nvcc_flags(pass_configs(schedule))),
        headers=_literal(digests(headers)),
        headers_xz="\n".join(pack(headers, avoid=FORBIDDEN_WORD)),
        plain_megabytes=f"{sum(len(text.encode()) for text in headers.values()) / 1e6:.1f}",
    )


def _fill(template: str, **parts: str) -> str:
    return Template((TEMPLATES / template).read_text(encoding="utf-8")).substitute(parts)


def _checked_name(name: str) -> str:
    """The name stands in comments, so it may not end one."""
    if not re.fullmatch(r"[\w.+-]+", name):
        raise InputError(f"schedule name {name[:60]!r}, expected letters, digits, '.', '+', '-' and '_' only")
    return name


def _tilelang_version() -> str:
    import tilelang

    # What follows the plus names a build, not another program.
    return tilelang.__version__.split("+")[0]


def _program_text(schedule: Schedule) -> str:
    """The macros and the schedule's kernel as they are, with the imports that the rest of the file needs."""
    parts = ["from types import SimpleNamespace\n\nimport tilelang\nimport tilelang.language as T\nimport torch"]
    files = KERNEL_FILES[schedule.lowering]
    packed = {f"tl_attention.{file.removesuffix('.py').replace('/', '.')}" for file in files}
    for file in files:
        text = (PACKAGE / file).read_text(encoding="utf-8")
        imports = {line for line in text.splitlines() if line.startswith(("import ", "from "))}
        others = {line for line in imports if line.split()[1] not in packed}
        known = {"import tilelang.language as T", "from types import SimpleNamespace"}
        assert others <= known, f"{file} imports {others}"
        for line in imports:
            text = text.replace(f"{line}\n", "", 1)
        # The module's docstring stays, as a comment on what follows.
        docstring, code = text.removeprefix('"""').split('"""', 1)
        comment = "\n".join(f"# {line}".rstrip() for line in docstring.strip().splitlines())
        parts.append(f"{comment}\n\n{code.strip()}")
    return "\n\n\n".join(parts)


def _parameters(source: str, plan: HostPlan) -> tuple[tuple[str, str], ...]:
    """(name, kind) of the kernel's parameters, read off its CUDA signature and held against the host's call."""
    match = SIGNATURE.search(source)
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
    _check_names(found, plan)
    return found


def _parameter(text: str) -> tuple[str, str]:
    for kind, pattern in PARAMETER_KINDS.items():
        if match := pattern.fullmatch(text):
            return match[1], kind
    raise InputError(f"the generated CUDA has a parameter {text[:80]!r} of an unknown kind")


def _check_names(parameters: tuple[tuple[str, str], ...], plan: HostPlan) -> None:
    """Each name must mean something where the submission looks it up."""
    known = {
        "tensor": set(TENSORS),
        "descriptor": {descriptor.name for descriptor in plan.descriptors},
        "int": {size.name for size in plan.sizes},
        "float": {"softmax_scale"},
    }
    read = [(size.tensor, "tensor") for size in plan.sizes]
    read += [(descriptor.tensor, "tensor") for descriptor in plan.descriptors]
    for name, kind in (*parameters, *read):
        if name not in known[kind]:
            raise InputError(f"the kernel takes the {kind} {name}, expected one of {', '.join(sorted(known[kind]))}")


def _nvcc_flags(pass_configs: Mapping[str, object]) -> tuple[str, ...]:
    """The flags that TileLang's options turn into; only fast math is known to become exactly one flag."""
    # TileLang's checks are in the generated code or not.
    unknown = sorted(set(pass_configs) - {FAST_MATH, NO_BOUND_CHECKS, NO_INIT_CHECKS})
    if unknown:
        raise InputError(f"pass option {unknown[0]!r} is not supported in a submission that carries CUDA")
    return (*NVCC_FLAGS, *(["--use_fast_math"] if pass_configs.get(FAST_MATH) else []))


def _descriptors(plan: HostPlan) -> str:
    """The descriptors as the text of a dict, sorted by name, indented for the body of launch_plan."""
    lines = ["dict("]
    for descriptor in sorted(plan.descriptors, key=lambda descriptor: descriptor.name):
        lines += [
            f"        {descriptor.name}=dict(",
            f'            tensor="{descriptor.tensor}",',
            f"            dtype={descriptor.dtype},",
            f"            dims={_tuple(extent.text for extent in descriptor.dims)},",
            f"            strides={_tuple(extent.text for extent in descriptor.strides)},",
            f"            box={descriptor.box},",
            f"            element_strides={descriptor.element_strides},",
            *(f"            {option}={value}," for option, value in descriptor.options.items()),
            "        ),",
        ]
    return "\n".join([*lines, "    )"])


def _tuple(texts: Iterable[str]) -> str:
    """The text of a tuple of expressions, at least two."""
    return f"({', '.join(texts)})"


def _call(arguments: Mapping[str, Any], indent: str = "") -> str:
    """The text of a call of dict with one argument a line, also for a dict inside it."""
    lines = ["dict("]
    for key, value in arguments.items():
        named = isinstance(value, dict) and value and all(name.isidentifier() for name in value)
        text = _call(value, indent + "    ") if named else _literal(value, indent + "    ")
        lines.append(f"{indent}    {key}={text},")
    return "\n".join([*lines, f"{indent})"])


def _literal(value: Any, indent: str = "") -> str:
    """The text of a constant, its strings in double quotes; a dict or tuple that is too long gets one item a line."""
    if isinstance(value, str):
        return json.dumps(value)
    inner = indent + "    "
    if isinstance(value, dict):
        items, brackets = [f"{_literal(key)}: {_literal(item, inner)}" for key, item in value.items()], "{}"
    elif isinstance(value, tuple):
        items, brackets = [_literal(item, inner) for item in value], "()"
    else:
        return repr(value)
    comma = "," if brackets == "()" and len(items) == 1 else ""
    line = f"{brackets[0]}{', '.join(items)}{comma}{brackets[1]}"
    if len(indent + line) <= WIDTH and "\n" not in line:
        return line
    return "\n".join([brackets[0], *(f"{inner}{item}," for item in items), f"{indent}{brackets[1]}"])

