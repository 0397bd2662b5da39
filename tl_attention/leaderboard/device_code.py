"""What a packed submission says of itself, read off its text, which is never executed for that."""

from __future__ import annotations

import ast
from typing import Any


def constants(submission: bytes) -> dict[str, Any]:
    """The values of the constants at the top level of a Python file, by name; none for a file that is not Python."""
    try:
        tree = ast.parse(submission)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                # A computed value is no constant.
                found.pop(node.targets[0].id, None)
    return found


def read_device_code(submission: bytes) -> dict[str, Any]:
    """{"device_code": fingerprint of the CUDA, "compilers": {name: version}, "cubin_sha256": of the machine code}.

    {} for a file that does not say so, a baseline for instance. A record that holds this stays true of a file whose
    comments and host code have changed since.
    """
    found = constants(submission)
    values = found.get("DEVICE_CODE"), found.get("COMPILERS"), found.get("CUBIN_SHA256")
    if tuple(map(type, values)) != (str, dict, str):
        return {}
    return dict(zip(("device_code", "compilers", "cubin_sha256"), values))
