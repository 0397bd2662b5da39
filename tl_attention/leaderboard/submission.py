"""Packs a schedule into one self-contained file for the leaderboard, in one of three forms.

`all` carries the TileLang program, the CUDA generated from it and machine code, and takes the first that runs where it
is sent. `tilelang` carries the program alone, `cuda` the generated CUDA. The same schedule and TileLang version give
the same text on every machine, whatever nvcc it has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from string import Template
from typing import Literal, get_args

from tl_attention.build.compile import CompiledKernel, compile_kernel
from tl_attention.build.generation import target
from tl_attention.build.sass import check_not_serialised, read_loops
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.leaderboard import cubin
from tl_attention.leaderboard.contract import FORBIDDEN_WORD, MAX_BYTES
from tl_attention.leaderboard.headers import digests, header_closure, pack, tilelang_include_folders, xz_lines
from tl_attention.leaderboard.launch_text import fast_math_flags, launch_parts
from tl_attention.leaderboard.program_text import program_text
from tl_attention.leaderboard.python_text import literal
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.lowering.registry import lowering_of
from tl_attention.problem.variant import Variant
from tl_attention.schedule.schedule import Schedule

Form = Literal["all", "tilelang", "cuda"]

TEMPLATES = Path(__file__).parent / "templates"
# The leaderboard's only problem.
VARIANT = Variant(head_dim=128, dtype="float16")


def write(name: str, schedule: Schedule, output: Path, embed: Form = "all") -> list[str]:
    """Make the submission of a schedule and write it, unless it breaks a rule of the servers.

    `name` stands in the file's first lines, as in `tl-attention submit NAME`. Returns those rules, one sentence each;
    with any, nothing is written. Raises InputError for a schedule that cannot be packed, and ScheduleRefused for one
    that cannot run.
    """
    if embed not in FORMS:
        raise InputError(f"embed: {embed!r} is unknown, expected {', '.join(get_args(Form))}")
    refuse_unless_safe(schedule, VARIANT.head_size)
    if lowering_of(schedule).counters(schedule):
        raise InputError(
            f"{name}: kernel.tile_scheduler: dynamic takes a counter that a submission does not pass, "
            "expected static or one_tile"
        )
    text = FORMS[embed](schedule, name=name).encode()
    broken = []
    if FORBIDDEN_WORD.encode() in text.lower():
        broken.append(f"The word {FORBIDDEN_WORD!r} occurs; one server rejects it anywhere, comments included.")
    if len(text) > MAX_BYTES:
        broken.append(f"The file has {len(text):,} bytes, over the limit of {MAX_BYTES:,}.")
    if not broken:
        try:
            output.write_bytes(text)
        except OSError as error:
            raise InputError(f"{output}: cannot be written: {error.strerror}") from None
    return broken


def all_form(schedule: Schedule, *, name: str) -> str:
    """The file that carries the program, the generated CUDA and machine code; `name` as in `write`.

    Raises InputError when what TileLang generated cannot be packed or NVRTC is missing, and ScheduleRefused when its
    machine code serialises the products.
    """
    identity = _identity(schedule, name)
    compiled = _compiled(schedule)
    # NVRTC reads one header more than nvcc does.
    headers = header_closure(f"#include <{cubin.STANDARD_HEADER}>\n{compiled.source}", tilelang_include_folders())
    options = (*cubin.OPTIONS, *fast_math_flags(lowering_of(schedule).pass_configs))
    machine_code = cubin.build(compiled.source, headers, options)
    nvrtc_version = cubin.PACKAGES[cubin.NVRTC]
    try:
        check_not_serialised(read_loops(machine_code))
    except ScheduleRefused as refusal:
        raise ScheduleRefused(f"in NVRTC {nvrtc_version}'s machine code {refusal}") from None
    toolkit = [f"{package} {version}" for package, version in cubin.PACKAGES.items() if package != cubin.NVRTC]
    return _fill(
        "all",
        **identity,
        **_program_parts(schedule),
        **_cuda_parts(compiled, schedule, headers),
        device_code=compiled.fingerprint,
        compilers=_compilers(nvrtc=nvrtc_version),
        nvrtc_version=nvrtc_version,
        toolkit_headers=" and ".join(toolkit),
        nvrtc_options=literal(options),
        cubin_sha256=cubin.sha256(machine_code),
        cubin_xz="\n".join(xz_lines(machine_code, avoid=FORBIDDEN_WORD)),
    )


def tilelang_form(schedule: Schedule, *, name: str) -> str:
    """The file that carries the TileLang program alone; `name` as in `write`."""
    identity = _identity(schedule, name)
    # Compiled for its fingerprint, and so proved to be what the schedule says.
    device_code = _compiled(schedule).fingerprint
    parts = _program_parts(schedule)
    return _fill("tilelang", **identity, **parts, device_code=device_code, compilers=_compilers())


def cuda_form(schedule: Schedule, *, name: str) -> str:
    """The file that carries the generated CUDA, its headers and its launch; `name` as in `write`.

    Raises InputError when what TileLang generated cannot be packed: an unknown form of its host code or signature.
    """
    identity = _identity(schedule, name)
    compiled = _compiled(schedule)
    headers = header_closure(compiled.source, tilelang_include_folders())
    parts = _cuda_parts(compiled, schedule, headers)
    return _fill("cuda", **identity, **parts, device_code=compiled.fingerprint, compilers=_compilers())


FORMS: dict[str, Callable[..., str]] = {"all": all_form, "tilelang": tilelang_form, "cuda": cuda_form}


def _identity(schedule: Schedule, name: str) -> dict[str, str]:
    """What every form's first lines say. The name stands in comments, so it may not end one."""
    if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name):
        raise InputError(f"schedule name {name[:60]!r}, expected letters, digits, '.', '+', '-', '_' and '/' only")
    return {"name": name, "label": schedule.label, "version": _tilelang_version(), "head_dim": str(VARIANT.head_dim)}


def _compiled(schedule: Schedule) -> CompiledKernel:
    return compile_kernel(schedule, VARIANT)


def _compilers(**others: str) -> str:
    return literal({"tilelang": _tilelang_version()} | others)


def _program_parts(schedule: Schedule) -> dict[str, str]:
    return {
        "program": program_text(schedule, VARIANT).strip(),
        "target": literal(target(VARIANT.arch)),
        "pass_configs": literal(dict(lowering_of(schedule).pass_configs)),
    }


def _cuda_parts(compiled: CompiledKernel, schedule: Schedule, headers: dict[str, str]) -> dict[str, str]:
    """The four parts of a file that builds, loads and launches generated CUDA."""
    parts = launch_parts(compiled, lowering_of(schedule).pass_configs)
    listed, packed = literal(digests(headers)), "\n".join(pack(headers, avoid=FORBIDDEN_WORD))
    return {
        "kernel": _fill("kernel", **parts),
        "build": _fill("build", **parts),
        "load": _fill("load"),
        "header_list": _fill("headers", headers=listed, headers_xz=packed),
        "plain_megabytes": f"{sum(len(text.encode()) for text in headers.values()) / 1e6:.1f}",
    }


def _fill(template: str, **parts: str) -> str:
    return Template((TEMPLATES / f"{template}.py.in").read_text(encoding="utf-8")).substitute(parts).rstrip("\n") + "\n"


def _tilelang_version() -> str:
    import tilelang

    # What follows the plus names a build, not another program.
    return tilelang.__version__.split("+")[0]
