"""Packs a schedule into one file for the leaderboard, and packs it again to check such a file.

The same schedule and versions give the same text on every machine, whatever nvcc it has.
"""

from __future__ import annotations

import base64
import hashlib
import lzma
import re
import subprocess
import sys
import textwrap
from itertools import zip_longest
from pathlib import Path
from string import Template

import yaml

from tl_attention.build.compile import compile_kernel
from tl_attention.build.compiler_errors import serialised_because
from tl_attention.build.generation import target
from tl_attention.build.sass import check_not_serialised, read_loops
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.files import user_file
from tl_attention.leaderboard import cubin
from tl_attention.leaderboard.contract import FORBIDDEN_WORD, MAX_BYTES, read_submission
from tl_attention.leaderboard.device_code import constants
from tl_attention.leaderboard.launch_text import launch_text
from tl_attention.leaderboard.needed import RUFF
from tl_attention.leaderboard.program import program_text
from tl_attention.lowering.base import FAST_MATH
from tl_attention.lowering.preflight import refuse_unless_safe
from tl_attention.lowering.registry import lowering_of
from tl_attention.measure.environment import package
from tl_attention.problem.variant import Variant
from tl_attention.program.planned import Planned
from tl_attention.schedule.schedule import Schedule

TEMPLATE = Path(__file__).parent / "templates" / "submission.py.in"
# The leaderboard's only problem.
VARIANT = Variant(head_dim=128, dtype="float16")
WIDTH = 120
FORMAT = ("format", "--isolated", f"--line-length={WIDTH}", "--config=format.skip-magic-trailing-comma=true", "-")


def pack(name: str, schedule: Schedule) -> str:
    """The submission of a schedule, which `name` says in `tl-attention submit NAME`.

    Raises InputError for a schedule that cannot be packed, and ScheduleRefused for one that cannot run.
    """
    if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name):
        raise InputError(f"schedule name {name[:60]!r}, expected letters, digits, '.', '+', '-', '_' and '/' only")
    refuse_unless_safe(Planned(schedule), VARIANT.head_size)
    lowering = lowering_of(schedule)
    if lowering.counters(schedule):
        raise InputError(
            f"{name}: kernel.tile_scheduler: dynamic takes a counter that a submission does not pass, "
            "expected static or one_tile"
        )
    compiled = compile_kernel(schedule, VARIANT)
    options = (*cubin.OPTIONS, *(["--use_fast_math"] if lowering.pass_configs.get(FAST_MATH) else []))
    machine_code, log = cubin.build(compiled.source, options)
    try:
        check_not_serialised(read_loops(machine_code), lambda: serialised_because(log))
    except ScheduleRefused as refusal:
        raise ScheduleRefused(f"in NVRTC {cubin.VERSION}'s machine code {refusal}") from None
    keys = schedule.model_dump(mode="json", exclude_defaults=True)
    xz = base64.b64encode(lzma.compress(machine_code, preset=9 | lzma.PRESET_EXTREME)).decode()
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        name=name,
        schedule=yaml.safe_dump(keys, sort_keys=False, default_flow_style=None, width=100),
        version=str(package("tilelang")).split("+")[0],
        nvrtc=cubin.VERSION,
        device_code=compiled.fingerprint,
        program=program_text(schedule, VARIANT),
        launch=launch_text(compiled),
        target=target(VARIANT.arch),
        pass_configs=dict(lowering.pass_configs),
        head_dim=VARIANT.head_dim,
        nvrtc_options=options,
        cubin_sha256=hashlib.sha256(machine_code).hexdigest(),
        cubin_xz="\n".join(textwrap.wrap(xz, WIDTH)),
    )
    return formatted(text)


def write(name: str, schedule: Schedule, output: Path) -> None:
    """Pack a schedule and write the file. Raises as `pack` does, and InputError for a file that the servers would refuse."""
    text = pack(name, schedule)
    if FORBIDDEN_WORD in text.lower():
        raise InputError(f"{name}: not packed, one server rejects every file that holds the word {FORBIDDEN_WORD!r}")
    if len(text.encode()) > MAX_BYTES:
        raise InputError(f"{name}: not packed, {len(text.encode()):,} bytes, the servers take {MAX_BYTES:,}")
    user_file.write(output, text)


def check(path: Path) -> tuple[str, str, int]:
    """Pack the schedule that a file carries again, and compare. The file is read, and not executed.

    Returns the sha256 of the file's cubin and of the one made again, and the first line of the text that differs, 0 for
    none. Raises InputError for a file that was not packed by `pack`.
    """
    text = read_submission(path)
    found = constants(text)
    for name in ("NAME", "SCHEDULE", "CUBIN_XZ"):
        if not isinstance(found.get(name), str):
            raise InputError(f"{path}: no {name}, expected a file that `tl-attention submit` packed")
    part = "SCHEDULE"
    try:
        schedule = Schedule(**yaml.safe_load(found[part]))
        part = "CUBIN_XZ"
        unpacker = lzma.LZMADecompressor(memlimit=2**28)
        carried = unpacker.decompress(base64.b64decode(found[part]), MAX_BYTES)
        if not unpacker.eof:
            raise EOFError
    except (ValueError, TypeError, EOFError, RecursionError, yaml.YAMLError, lzma.LZMAError):
        raise InputError(f"{path}: {part} is not what a packed file has") from None
    again = pack(found["NAME"], schedule).encode()
    lines = enumerate(zip_longest(text.splitlines(), again.splitlines()), 1)
    differs = next((number for number, (ours, theirs) in lines if ours != theirs), 0)
    return hashlib.sha256(carried).hexdigest(), constants(again)["CUBIN_SHA256"], differs


def formatted(text: str) -> str:
    """The text as ruff formats it. Raises InputError unless ruff is there in the release that all machines pack with."""
    if (found := package("ruff")) != RUFF:
        raise InputError(f"ruff is {found}, and a submission is formatted by ruff {RUFF}: `pip install ruff=={RUFF}`")
    command = [sys.executable, "-m", "ruff", *FORMAT]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
