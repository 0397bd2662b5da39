"""The processes of test_mutation_tools.py make these calls; a spawned process imports them by name."""

import os

from code_mutants.on_gpu import HUNG, RIGHT, Result, compiled


def end_right(kernel: str, source: str, cubin: bytes, limit_s: float) -> Result:
    return Result(RIGHT, f"{kernel} {source}")


def end_as_a_hung_kernel(kernel: str, source: str, cubin: bytes, limit_s: float) -> Result:
    os._exit(HUNG)


def text_compiled(kernel: str, source: str, cubin: bytes) -> str:
    return compiled(kernel, source, cubin).source
