"""An archive has many kernels in one file, in blocks that are opened when one of their kernels is asked for.

    MAGIC | blocks | index | the index's length

A block is xz of kernels, one after another, as `store.packed` gives them: kernels that are alike, as those of a
schedule are, take less room together. The index is xz of JSON: {"blocks": [[begin, length, SHA-256], ...],
"kernels": {key: [block, begin, length]}}. Whoever opens an archive knows the SHA-256 of its index, and that of each
block is in the index: nothing is read that is not exactly what was written.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from tl_attention.errors import InputError

MAGIC = b"tl-attention kernels 1\n"
LENGTH = 16
# Kernels of a block: more of them take less room, and longer to open.
BLOCK = 16
XZ = lzma.PRESET_DEFAULT
# The archive that a wheel has, and the module that has the SHA-256 of its index; a checkout has neither.
FILE, MODULE, NAME = "kernels.archive", "tl_attention.shipped_kernels", "INDEX_SHA256"


def write(file: Path, kernels: Iterable[tuple[str, bytes]]) -> str:
    """Writes (key, packed kernel) in this order, BLOCK to a block; returns the SHA-256 of the index."""
    blocks: list[tuple[int, int, str]] = []
    places: dict[str, tuple[int, int, int]] = {}
    of_all = [*kernels]
    with file.open("wb") as archive:
        archive.write(MAGIC)
        for first in range(0, len(of_all), BLOCK):
            bodies = b""
            for key, body in of_all[first : first + BLOCK]:
                places[key] = len(blocks), len(bodies), len(body)
                bodies += body
            data = lzma.compress(bodies, preset=XZ)
            blocks.append((archive.tell(), len(data), sha256(data).hexdigest()))
            archive.write(data)
        index = lzma.compress(json.dumps({"blocks": blocks, "kernels": places}).encode(), preset=XZ)
        archive.write(index + f"{len(index):0{LENGTH}x}".encode())
    return sha256(index).hexdigest()


class Archive:
    """An Archive reads a file that `write` wrote, whose index has this SHA-256.

    Raises InputError for any other file, and OSError where it cannot be read.
    """

    def __init__(self, file: Path, index_sha256: str) -> None:
        self._file = file
        with file.open("rb") as archive:
            try:
                archive.seek(-LENGTH, 2)
                length = int(archive.read(), 16)
                archive.seek(-LENGTH - length, 2)
            except (ValueError, OSError):
                raise self._damaged() from None
            index = archive.read(length)
        if sha256(index).hexdigest() != index_sha256:
            raise self._damaged()
        found = json.loads(lzma.decompress(index))
        self._blocks: Sequence[tuple[int, int, str]] = found["blocks"]
        self._places: dict[str, tuple[int, int, int]] = found["kernels"]
        self._opened = functools.lru_cache(maxsize=4)(self._open)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def kernel(self, key: str) -> bytes | None:
        """Returns the packed kernel of this key, None where there is none. Raises InputError for a damaged block."""
        if key not in self._places:
            return None
        block, begin, length = self._places[key]
        return self._opened(block)[begin : begin + length]

    def _open(self, number: int) -> bytes:
        begin, length, expected = self._blocks[number]
        with self._file.open("rb") as archive:
            archive.seek(begin)
            data = archive.read(length)
        if sha256(data).hexdigest() != expected:
            raise self._damaged()
        return lzma.decompress(data)

    def _damaged(self) -> InputError:
        return InputError(f"{self._file}: it is not what was packed, expected the file of this version of tl-attention")


@functools.cache
def shipped() -> Archive | None:
    """Returns the archive that this package was installed with, None where there is none, as in a checkout.

    Raises InputError where its file is damaged or gone.
    """
    if find_spec(MODULE) is None:
        return None
    file = Path(__file__).parents[1] / FILE
    try:
        return Archive(file, getattr(import_module(MODULE), NAME))
    except OSError as error:
        raise InputError(
            f"{file}: {error.strerror or error}, expected the file of this version of tl-attention"
        ) from None
