"""The check of an output, in a process that never sees the submission: it reads bytes, and draws the inputs anew.

Runs in one pool.Worker for all lines, started before the submission is. Torch is imported there only.
"""

from __future__ import annotations

import os
import platform
import stat
from dataclasses import asdict, replace

from tl_attention.build import toolchain
from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import TestLine
from tl_attention.measure.environment import commit, gpu, package

ELEMENT_BYTES = 2


def environment(device: str) -> dict[str, str] | None:
    """The GPU's name (for the CPU the processor's), versions, driver, power limit and commit, as far as they are known;
    None where torch sees no GPU for "cuda". `nvcc` and `ptxas` are those that compile here, where any can: a file that
    carries machine code needs none, and one that looks for an nvcc itself may find another.

    Checks something tiny, so that everything a check needs is loaded.
    """
    import torch

    from tl_attention.leaderboard import reference

    if device == "cuda" and not torch.cuda.is_available():
        return None
    tiny = reference.generate_input(batch_size=1, num_heads=1, seq_len=8, head_dim=8, seed=0, device=device)
    reference.compare(tiny, tiny[0])
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    versions = {name: package(name) or "none" for name in ("torch", "triton", "tilelang")}
    known = gpu() if device == "cuda" else None
    machine = {
        "commit": commit(),
        "driver": known and known.driver,
        "power_limit_w": known and known.power_limit_w and f"{known.power_limit_w:.0f}",
    }
    machine |= _compilers(torch.version.cuda)
    told = {name: value for name, value in machine.items() if value}
    return {"device_name": name, "python": platform.python_version()} | versions | told


def _compilers(torch_cuda: str | None) -> dict[str, str]:
    try:
        nvcc = toolchain.chosen(torch_cuda)
    except InputError:
        return {}
    return {"nvcc": nvcc.version, "ptxas": nvcc.ptxas}


def check(path: str, line: TestLine, seed: int, device: str) -> dict:
    """Compare the file's bytes, an output of the line's shape in fp16, with the reference for inputs of that seed.

    Returns the fields of Verdict.
    """
    import torch

    from tl_attention.leaderboard import reference

    shape = (line.batch_size, line.num_heads, line.seq_len, line.head_dim)
    try:
        buffer = _read(path, ELEMENT_BYTES * line.batch_size * line.num_heads * line.seq_len * line.head_dim)
    except (OSError, ValueError) as error:
        reason = f"the output's file cannot be read: {getattr(error, 'strerror', None) or error}"
        return {"accepted": False, "tight": False, "max_abs_error": None, "reason": reason}
    data = reference.generate_input(**asdict(replace(line, seed=seed)), device=device)
    output = torch.frombuffer(buffer, dtype=torch.float16).view(shape).to(data[0].device)
    found = asdict(reference.compare(data, output))
    if device == "cuda":
        # The submission's process needs the memory next.
        del data, output
        torch.cuda.empty_cache()
    return found


def _read(path: str, size: int) -> bytearray:
    """The bytes of a plain file of exactly that size: no link, no pipe that would block, nothing that grows."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise ValueError(f"{found.st_size:,} bytes, expected a plain file of {size:,}")
        buffer = bytearray(size)
        if file.readinto(buffer) != size:
            raise ValueError(f"fewer bytes than the {size:,} that it has")
        return buffer
