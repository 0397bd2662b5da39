"""Keeps finished kernels on disk, a file each: the shared library, the text that it was made of, and the proof's verdict.

A file is named by the key of its kernel, and ends with a seal over its name and all that stands before. What is not
exactly what was written is taken for absent, and replaced by whoever makes it again. Files are written whole or not at
all, so any number of processes may do this at once; where nothing can be written, kernels are made again every time.

The seal finds damage. It keeps nobody from writing a kernel of their own: `trust.py` does.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

from tl_attention.build import trust
from tl_attention.proof.generated.verdict import Verdict

# A loader of shared libraries takes no notice of what follows one: the texts, how long these are, and the seal.
SUFFIX = ".so"
SEAL, LENGTH = 64, 16
# A finished kernel has less than 2 MB.
MOST_BYTES = 64 * 2**20


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
    """The kernel in the file; None where there is none, or anything else than what was written under this name.

    Raises InputError where others may write to the file or its folders. Where they may not, it stays what was read here:
    the loader may open it by its name.
    """
    trust.check(file.parent)
    try:
        found = _bytes(file)
    except OSError:
        return None
    body, seal = found[:-SEAL], found[-SEAL:]
    if seal != _seal(file, body):
        return None
    texts = len(body) - LENGTH - int(body[-LENGTH:], 16)
    source, host_source, verdict = json.loads(body[texts:-LENGTH])
    return Finished(body[:texts], source, host_source, _verdict(verdict))


def keep(file: Path, kernel: Finished) -> None:
    """Write the file whole and for this user alone, in place of any other; do nothing where that cannot be.

    Raises InputError where others may write to its folders.
    """
    verdict = kernel.verdict and asdict(kernel.verdict)
    texts = json.dumps([kernel.source, kernel.host_source, verdict]).encode()
    body = kernel.library + texts + f"{len(texts):0{LENGTH}x}".encode()
    unfinished = file.with_name(f"{file.name}.{uuid4().hex}")
    try:
        trust.make_private(file.parent)
        with open(unfinished, "xb", opener=partial(os.open, mode=0o600)) as opened:
            opened.write(body + _seal(file, body))
        unfinished.replace(file)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()


def _bytes(file: Path) -> bytes:
    """What is in a regular file of a sane size, nothing of what else stands in its place. Raises OSError, and as `trust`."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            return b""
        trust.check_one(file, found)
        return opened.read()


def _verdict(fields: dict[str, Any] | None) -> Verdict | None:
    """What JSON made of it: a list of each tuple."""
    if fields is None:
        return None
    return Verdict(**fields | {name: tuple(value) for name, value in fields.items() if isinstance(value, list)})


def _seal(file: Path, body: bytes) -> bytes:
    """It holds what is kept to the name, so to the key."""
    return sha256(file.name.encode() + b"\n" + body).hexdigest().encode()
