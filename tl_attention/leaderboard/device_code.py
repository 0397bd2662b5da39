"""What a packed submission says of itself, read off its text, which is never executed for that."""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import Any

READ_AS = {"DEVICE_CODE": "device_code", "COMPILERS": "compilers", "CUBIN_SHA256": "cubin_sha256"}
MALFORMED = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)


def constants(submission: bytes) -> dict[str, Any]:
    """The constants at the top level of a Python file, by name; none for a file that is not Python."""
    found: dict[str, Any] = {}
    with suppress(*MALFORMED):
        for node in ast.parse(submission).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                # A computed value is no constant.
                found.pop(node.targets[0].id, None)
                with suppress(*MALFORMED):
                    found[node.targets[0].id] = ast.literal_eval(node.value)
    return found


def read_device_code(submission: bytes) -> dict[str, Any]:
    """What names the machine code, and what made it; {} for a file that does not say all of it, such as a baseline.

    A record that holds this stays true of a file whose comments and host code have changed since.
    """
    found = {name: value for name, value in constants(submission).items() if name in READ_AS}
    return {READ_AS[name]: value for name, value in found.items()} if len(found) == len(READ_AS) else {}
