"""Waits for the GPU with a limit. After a kernel that hangs or fails, every later call of its process fails too."""

import os
import sys
import time
from typing import NoReturn

import torch

# A case takes milliseconds, beside 15 others that share the GPU.
LIMIT_S = 60.0


class Lost(Exception):
    """Raised where a kernel hangs, or the CUDA context has failed."""


def wait(limit_s: float = LIMIT_S) -> None:
    """Returns when all work of the current stream is done. Raises Lost."""
    done, end = torch.cuda.Event(), time.monotonic() + limit_s
    try:
        done.record()
        while not done.query():
            if time.monotonic() > end:
                raise Lost(f"it ran for more than {limit_s:.0f} s")
            time.sleep(1e-4)
    except RuntimeError as error:
        raise Lost(f"{error}".partition("\n")[0]) from error


def leave(line: str) -> NoReturn:
    """Ends this process and says why: pytest-xdist starts another one for the tests that are left."""
    print(f"\n{line}", file=sys.__stderr__, flush=True)
    os._exit(1)
