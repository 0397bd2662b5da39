"""The check of outputs, in a process that never sees the submission: it reads bytes and draws the inputs anew."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, replace
from typing import Any

from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import TestLine
from tl_attention.measure.machine import machine_text


def environment(device: str) -> dict[str, str]:
    """What this process runs on. It compares something tiny, so that everything that a check needs is loaded.

    Raises InputError for "cuda" where torch sees no GPU.
    """
    import torch

    from tl_attention.leaderboard import reference

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("torch sees no CUDA GPU, expected one; device 'cpu' tests the harness only")
    tiny = reference.generate_input(batch_size=1, num_heads=1, seq_len=8, head_dim=8, seed=0, device=device)
    reference.compare(tiny, tiny[0])
    return machine_text(device)


def check(first: str, second: str, line: TestLine, device: str) -> dict[str, Any]:
    """Compare a test's two outputs, which are bytes in files; the inputs of the second have the next seed.

    Returns what reference.compare says of the two together. Raises OSError or ValueError for a file that is no output.
    """
    verdict = _compare(first, line, device)
    if not verdict["accepted"]:
        return verdict
    other = _compare(second, replace(line, seed=line.seed + 1), device)
    if not other["accepted"]:
        return other | {"reason": f"right at first, wrong for other inputs at the same addresses: {other['reason']}"}
    error = max(verdict["max_abs_error"], other["max_abs_error"])
    reason, tight = verdict["reason"] or other["reason"], verdict["tight"] and other["tight"]
    return {"accepted": True, "tight": tight, "max_abs_error": error, "reason": reason}


def _compare(path: str, line: TestLine, device: str) -> dict[str, Any]:
    import torch

    from tl_attention.leaderboard import reference

    data = reference.generate_input(**asdict(line), device=device)
    output = torch.frombuffer(_read(path, data[0].nbytes), dtype=torch.float16).view_as(data[0])
    found = reference.compare(data, output.to(data[0].device))
    if device == "cuda":
        # The next submission needs the memory.
        del data
        torch.cuda.empty_cache()
    return found


def _read(path: str, size: int) -> bytearray:
    """The bytes of a plain file of exactly that size: no link, no pipe that would block, nothing that grows."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found, content = os.fstat(descriptor), bytearray(size)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size or file.readinto(content) != size:
            raise ValueError(f"the output's file has {found.st_size:,} bytes, expected a plain file of {size:,}")
    return content
