"""A temporary file, for a program that takes only files, lies in its own folder; one line says where it cannot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tl_attention.errors import InputError


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yields a new folder, which is gone behind the block. Raises InputError where none can be made."""
    with ExitStack() as stack:
        with as_input_error():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        yield folder


@contextmanager
def scratch_file(name: str, content: bytes) -> Iterator[Path]:
    """Yields a file of this name and content, for the block; raises InputError if it cannot be written."""
    with scratch_folder() as folder:
        file = folder / name
        with as_input_error():
            file.write_bytes(content)
        yield file


@contextmanager
def as_input_error() -> Iterator[None]:
    """Turns an OSError of a temporary file, raised inside the block, into an InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{error.filename or 'temporary files'}: cannot be written: {error.strerror}; set TMPDIR to a folder with room"
        ) from None
