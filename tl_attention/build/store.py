"""Keeps finished kernels on disk, a file each: the shared library, the text that it was made of, and the proof's verdict.

A file is named by the key of its kernel, and ends with a seal over its name and all that stands before. What is not
exactly what was written is taken for absent, and replaced by whoever makes it again. Files are written whole or not at
all, so any number of processes may do this at once; where nothing can be written, kernels are made again every time.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from tl_attention.proof.generated.verdict import Verdict

# A loader of shared libraries takes no notice of what follows one: the texts, how long these are, and the seal.
SUFFIX = ".so"
SEAL, LENGTH = 64, 16


@dataclass(frozen=True)
class Finished:
    """A kernel that is compiled and proved: its library, the device's CUDA, the host's C, and the verdict on these.

    `verdict` is None for a schedule without a Program.
    """

    library: bytes
    source: str
    host_source: str
    verdict: Verdict | None


def read(file: Path) -> Finished | None:
    """The kernel in the file; None where there is none, or anything else than what was written under this name."""
    try:
        found = file.read_bytes()
    except OSError:
        return None
    body, seal = found[:-SEAL], found[-SEAL:]
    if seal != _seal(file, body):
        return None
    texts = len(body) - LENGTH - int(body[-LENGTH:], 16)
    source, host_source, verdict = json.loads(body[texts:-LENGTH])
    return Finished(body[:texts], source, host_source, _verdict(verdict))


def keep(file: Path, kernel: Finished) -> None:
    """Write the file whole, in place of any other, or do nothing where that cannot be."""
    verdict = kernel.verdict and asdict(kernel.verdict)
    texts = json.dumps([kernel.source, kernel.host_source, verdict]).encode()
    body = kernel.library + texts + f"{len(texts):0{LENGTH}x}".encode()
    unfinished = file.with_name(f"{file.name}.{uuid4().hex}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(body + _seal(file, body))
        unfinished.replace(file)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()


def _verdict(fields: dict[str, Any] | None) -> Verdict | None:
    """What JSON made of it: a list of each tuple."""
    if fields is None:
        return None
    return Verdict(**fields | {name: tuple(value) for name, value in fields.items() if isinstance(value, list)})


def _seal(file: Path, body: bytes) -> bytes:
    """It holds what is kept to the name, so to the key."""
    return sha256(file.name.encode() + b"\n" + body).hexdigest().encode()
