"""Keeps the verdict on a kernel's generated code beside the kernel, in TileLang's disk cache.

A verdict is good for what was proved and no more: its file is named by a hash of everything that the proof reads and
of the proof's own text. What cannot be believed, for whatever reason, is proved again and replaced; a refusal is not
kept. Files are written whole or not at all, so any number of processes may do this at once.
"""

from __future__ import annotations

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import TypeAdapter

from tl_attention.lowering.registry import lowering_of
from tl_attention.program.program import Program
from tl_attention.proof.generated.verdict import GeneratedCode, Verdict
from tl_attention.schedule.schedule import Schedule

# Where the text of the proof is: in lowering/, which gives the verdict, and in all that it imports.
PROOF = ("errors.py", "problem", "hardware", "loop", "schedule", "program", "proof", "lowering")
PACKAGE = Path(__file__).parents[1]
# What TileLang 0.1.15 notes of a kernel that is in its disk cache: the kernel's folder.
KERNEL_FOLDER = "_tilelang_cache_path"
STORED = TypeAdapter(Verdict)


def verdict_of(kernel: Any, schedule: Schedule, program: Program, code: GeneratedCode) -> Verdict:
    """The verdict that is kept beside TileLang's `kernel`, or else the proof's, which is then kept there.

    Raises ScheduleRefused as the proof does. A kernel that is in no disk cache, or in one that cannot be written, is
    proved every time.
    """
    folder = getattr(kernel, KERNEL_FOLDER, None)
    file = Path(folder, f"verdict-{key(schedule, program, code)}") if folder else None
    verdict = _read(file) if file else None
    if verdict is None:
        verdict = lowering_of(schedule).check_generated(schedule, program, code)
        if file:
            _keep(file, verdict)
    return verdict


def key(schedule: Schedule, program: Program, code: GeneratedCode) -> str:
    """A hash of all that a verdict depends on.

    The Program follows from the schedule today; it is what the code is held to, so it stands for itself.
    """
    read = {
        "device code": code.source,
        "launch plan": code.host_source,
        "Program": [repr(program), repr(program.phases)],
        "schedule": schedule.model_dump_json(),
        "variant": repr(code.variant),
        "parameters": repr(code.parameters),
        "proof": VERSION,
    }
    return sha256(json.dumps(read).encode()).hexdigest()


def version(package: Path) -> str:
    """A hash of the text of the proof, as the package has it in this folder."""
    files = [package / PROOF[0], *(file for room in PROOF[1:] for file in sorted((package / room).rglob("*.py")))]
    # Whatever an editor puts beside a module need not be a file.
    text = {str(file.relative_to(package)): file.read_text("utf-8") for file in files if file.is_file()}
    # What a verdict is kept as is part of it, too.
    return sha256(json.dumps([text, Path(__file__).read_text("utf-8")]).encode()).hexdigest()


# Read together with the modules themselves: a file that is edited later is not what runs in this process.
VERSION = version(PACKAGE)


def _read(file: Path) -> Verdict | None:
    """The verdict in the file; None where there is none, or anything else than what was written under this name."""
    try:
        seal, _, verdict = file.read_bytes().partition(b"\n")
        return STORED.validate_json(verdict) if seal == _seal(file, verdict) else None
    except (OSError, ValueError):
        return None


def _keep(file: Path, verdict: Verdict) -> None:
    """Write the file whole, in place of any other, or do nothing where that cannot be."""
    text = STORED.dump_json(verdict)
    unfinished = file.with_name(f"{file.name}.{uuid4().hex}")
    try:
        unfinished.write_bytes(_seal(file, text) + b"\n" + text)
        unfinished.replace(file)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()


def _seal(file: Path, verdict: bytes) -> bytes:
    """The first line of the file: it holds the verdict to the name, so to the key."""
    return sha256(file.name.encode() + b"\n" + verdict).hexdigest().encode()
