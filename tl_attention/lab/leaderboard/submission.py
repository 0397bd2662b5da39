"""This module packs a schedule into one file for the leaderboard, and packs it again to check such a file.

The same schedule and versions give the same text on every machine, whatever nvcc it has.
"""

from __future__ import annotations

import base64
import hashlib
import lzma
import re
import textwrap
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from pathlib import Path
from string import Template

import yaml

from tl_attention.compiler import toolchain
from tl_attention.compiler.compile import compile_kernel
from tl_attention.compiler.generation import target
from tl_attention.errors import InputError, ScheduleRefused, shown
from tl_attention.kernels.registry import lowering_of
from tl_attention.kernels.shared.base import FAST_MATH
from tl_attention.lab.leaderboard import machine_code
from tl_attention.lab.leaderboard.contract import FORBIDDEN_WORD, MAX_BYTES, constants, read_submission
from tl_attention.lab.leaderboard.python_text import WIDTH, enclosed, literal
from tl_attention.lab.machine_code.nvcc import serialised_because
from tl_attention.lab.machine_code.sass import TOOLS, check_not_serialised, read_loops, tool
from tl_attention.lab.measure.doctor import refusal
from tl_attention.lab.measure.machine import package
from tl_attention.problem.card import HOPPER
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

TEMPLATE = Path(__file__).parent / "templates" / "submission.py.in"
# What a template defines, or imports as a whole.
OWN_NAME = re.compile(r"^(?:def |class |import )?(\w+)(?: = |[.:(]|$)", re.MULTILINE)
# The leaderboard's only problem, in which K and V have Q's heads, on its GPU.
VARIANT = Variant(head_dim=128, dtype="float16", group=1, sms=HOPPER.sms)


def pack(name: str, schedule: Schedule) -> str:
    """Packs a schedule into the text of a submission file, which has its TileLang program and its machine code.

    `name` is the NAME in `tl-attention submit NAME`. Raises InputError where something is missing that packing needs,
    for a schedule that cannot be packed, and for a file that the servers would refuse; ScheduleRefused for a schedule
    that cannot run.
    """
    check_all_there()
    from tl_attention.lab.leaderboard.program import packed_program

    if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name):
        raise InputError(f"schedule name {name[:60]!r}, expected letters, digits, '.', '+', '-', '_' and '/' only")
    lowering, planned = lowering_of(schedule), Planned(schedule)
    if schedule.kernel.tile_scheduler == "dynamic":
        raise InputError(
            f"{name}: kernel.tile_scheduler: dynamic takes a counter that a submission does not pass, "
            "expected static or one_tile"
        )
    if schedule.kernel.early:
        raise InputError(f"{name}: kernel.early: true is a launch that a submission does not make, expected false")
    compiled = compile_kernel(schedule, VARIANT, planned)
    options = (*machine_code.OPTIONS, *(["--use_fast_math"] if lowering.pass_configs.get(FAST_MATH) else []))
    cubin, log = machine_code.build(compiled.source, options)
    try:
        check_not_serialised(read_loops(cubin), lambda: serialised_because(log))
    except ScheduleRefused as refusal:
        raise ScheduleRefused(f"in NVRTC {machine_code.VERSION}'s machine code {refusal}") from None
    template = TEMPLATE.read_text(encoding="utf-8")
    own_names = ("PASS_CONFIGS", "NVRTC_OPTIONS", *OWN_NAME.findall(template + machine_code.LAUNCH))
    program = packed_program(planned, VARIANT, own_names)
    configs = (f"{literal(key)}: {literal(value)}" for key, value in lowering.pass_configs.items())
    keys = schedule.model_dump(mode="json", exclude_defaults=True)
    xz = base64.b64encode(lzma.compress(cubin, preset=9 | lzma.PRESET_EXTREME)).decode()
    text = Template(template).substitute(
        name=name,
        schedule=yaml.safe_dump(keys, sort_keys=False, default_flow_style=None, width=100),
        version=str(package("tilelang")).split("+")[0],
        nvrtc=machine_code.VERSION,
        device_code=compiled.fingerprint,
        imports="\n".join(program.imports),
        of_tilelang="".join(f"\n    {line}" for line in program.of_tilelang),
        program=program.text,
        launch=machine_code.launch_text(compiled),
        target=literal(target(VARIANT.arch)),
        pass_configs=enclosed("PASS_CONFIGS = {", configs, "}"),
        head_dim=VARIANT.head_dim,
        nvrtc_options=enclosed("NVRTC_OPTIONS = (", map(literal, options), ")"),
        cubin_sha256=hashlib.sha256(cubin).hexdigest(),
        cubin_xz="\n".join(textwrap.wrap(xz, WIDTH)),
    )
    return within_limits(name, text)


def check(path: Path) -> tuple[str, str, int]:
    """Packs the schedule of a packed file again, and returns both cubins' sha256 and the first line that differs.

    The file is read, and not executed. The first sha256 is that of the file's cubin, the second that of the cubin made
    again. The line is a number in the text, 0 for none. Raises InputError for a file that was not packed by `pack`.
    """
    text = read_submission(path)
    found = constants(text)
    for part in ("NAME", "SCHEDULE", "CUBIN_XZ"):
        if not isinstance(found.get(part), str):
            raise InputError(f"{path}: no {part}, expected a file that `tl-attention submit` packed")
    part = "SCHEDULE"
    try:
        schedule = Schedule(**yaml.safe_load(found[part]))
        part = "CUBIN_XZ"
        carried = lzma.decompress(base64.b64decode(found[part]))
    except (ValueError, TypeError, RecursionError, yaml.YAMLError, lzma.LZMAError):
        raise InputError(f"{path}: {part} is not what a packed file has") from None
    again = pack(found["NAME"], schedule).encode()
    lines = enumerate(zip_longest(text.splitlines(), again.splitlines()), 1)
    differs = next((number for number, (ours, theirs) in lines if ours != theirs), 0)
    return hashlib.sha256(carried).hexdigest(), constants(again)["CUBIN_SHA256"], differs


def within_limits(name: str, text: str) -> str:
    """Returns the text unchanged, or raises InputError if it is too large or has a word that a server rejects.

    The error names the word's line.
    """
    found = next((line.strip() for line in text.splitlines() if FORBIDDEN_WORD in line.lower()), None)
    if found is not None:
        refused = f"one server rejects every file that holds the word {FORBIDDEN_WORD!r}"
        raise InputError(f"{name}: not packed, {refused}, found {shown(found)}")
    if len(text.encode()) > MAX_BYTES:
        raise InputError(f"{name}: not packed, {len(text.encode()):,} bytes, the servers take {MAX_BYTES:,}")
    return text


# --- what packing needs ----------------------------------------------------------------------------------------------


def check_all_there() -> None:
    """Raises InputError if a package or tool that packing needs is missing here, and lists all that are.

    The error has the command that installs the missing packages.
    """
    import torch

    pinned = machine_code.PACKAGES
    there = {name: package(name) for name in pinned}
    absent = [f"{name}=={version}" for name, version in pinned.items() if there[name] != version]
    others = [f"{name} {there[name]}" for name, version in pinned.items() if there[name] not in (None, version)]
    needed: dict[str, Callable[[], object]] = {
        "nvcc": lambda: toolchain.chosen_nvcc(torch.version.cuda),
        "a C++ compiler": toolchain.check_host_compiler,
        **{name: partial(tool, name) for name in TOOLS},
    }
    tools = [name for name, look in needed.items() if refusal(look)]
    parts = []
    if absent:
        here = f" (here is {', '.join(others)})" if others else ""
        parts.append(f"missing packages: `pip install {' '.join(absent)}`{here}")
    if tools:
        parts.append(f"missing tools: {', '.join(tools)}{toolchain.SEE_DOCTOR}")
    if parts:
        raise InputError(f"submit: {'; '.join(parts)}")
