"""What a packed submission says of itself, read off its text: it is never executed for that.

A record that names the generated device code stays true while comments and host code of the file change.
"""

from __future__ import annotations

import ast
from typing import Any

from tl_attention.build.compile import fingerprint


def read_device_code(submission: bytes) -> dict[str, Any]:
    """{"device_code": fingerprint of the generated CUDA, "compilers": {name: version}, "cubin_sha256": ...}.

    "cubin_sha256" where the file carries one. {} for a file that does not say, a baseline for instance, and for one
    whose DEVICE_CODE is not that of the CUDA that it carries.
    """
    found = constants(submission)
    device_code, compilers = found.get("DEVICE_CODE"), found.get("COMPILERS")
    if not isinstance(device_code, str) or not isinstance(compilers, dict):
        return {}
    source = found.get("KERNEL_SOURCE")
    if source is not None and (not isinstance(source, str) or fingerprint(source) != device_code):
        return {}
    cubin = found.get("CUBIN_SHA256")
    return {
        "device_code": device_code,
        "compilers": {str(name): str(version) for name, version in compilers.items()},
        **({"cubin_sha256": cubin} if isinstance(cubin, str) else {}),
    }


def constants(submission: bytes) -> dict[str, Any]:
    """{name: value} of the constants at the top level of a Python file; {} for a file that is not Python."""
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
                # A computed value: not a constant.
                found.pop(node.targets[0].id, None)
    return found
