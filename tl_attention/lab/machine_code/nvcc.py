"""These functions call nvcc for generated device code as TileLang does, for its words above all."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tl_attention.compiler.scratch import scratch_file
from tl_attention.compiler.toolchain import Nvcc, host_compiler, use_nvcc

# TileLang calls nvcc with these options for a kernel's machine code, and with CUBIN.
CUBIN = "-cubin"
OPTIONS = ("-O3", "-lineinfo", "-std=c++20", "--use_fast_math")
# ptxas says this of products that it serialises, with another number for each reason.
SERIALISED = re.compile(r"\(C75\d\d\).*\bserialized\b.*")


def compiler_messages(source: str, arch: str) -> str:
    """Returns what nvcc and ptxas print when they compile generated device code for an arch.

    They are called anew: TileLang keeps binaries, not words.
    """
    with use_nvcc() as nvcc:
        done = call_nvcc(nvcc, source, arch)
    return done.stdout + done.stderr


def call_nvcc(
    nvcc: Nvcc,
    source: str,
    arch: str,
    timeout_s: float | None = None,
    *,
    more: Sequence[str] = (CUBIN,),
    output: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Compiles device code by nvcc as TileLang does, and returns the ended process.

    `more` options say what is made: machine code unless given. That is kept in a file `output` alone. Raises
    subprocess.TimeoutExpired.
    """
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    with scratch_file("kernel.cu", source.encode()) as file:
        included = (f"-I{place}" for place in (TILELANG_TEMPLATE_PATH, CUTLASS_INCLUDE_DIR))
        options = (f"-ccbin={host_compiler()}", f"-arch={arch}", *OPTIONS, *more, *included)
        made = output or file.with_suffix(".made")
        command = [str(nvcc.home / "bin/nvcc"), *options, "-o", str(made), str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)


def serialised_because(output: str) -> str:
    """Returns the line in which ptxas says why it serialises products; "" where ptxas serialises none."""
    said = SERIALISED.search(output)
    return " ".join(said[0].split()) if said else ""
