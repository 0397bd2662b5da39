"""Makes SASS of CUDA text, with the nvcc and cuobjdump that the package finds first.

The package is imported late: a process of `same_code.py` imports this module before it knows its checkout.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import tempfile
from pathlib import Path

# What TileLang 0.1.15 gives nvcc, without line information and warnings.
OPTIONS = ("-cubin", "-O3", "-std=c++20", "-gencode", "arch=compute_90a,code=sm_90a", "--use_fast_math", "-w")
SIGNATURE = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\([^)]*\) )?(\w+)\((.*)\) \{$', re.MULTILINE)


TOKEN = re.compile(r"[A-Za-z_]\w*|\S")


class NotCompiled(Exception):
    """Raised where the compiler gives up; the message is its first error."""


def normalised(text: str) -> str:
    """Renames the kernel in CUDA text to `kernel`, and its parameters in order to `parameter_0`, `parameter_1`, ..."""
    names: dict[str, str] = {}
    for kernel, parameters in SIGNATURE.findall(text):
        names[kernel] = "kernel"
        names |= {p.split()[-1]: f"parameter_{index}" for index, p in enumerate(parameters.split(", "))}
    if not names:
        raise ValueError(f"no kernel in the text: {text[:200]!r}")
    return re.sub(r"\b[A-Za-z_]\w*\b", lambda word: names.get(word[0], word[0]), text)


def same_but_for_variables(before: str, after: str) -> bool:
    """Says whether two texts are equal up to names of variables that they declare, no two of which become one."""
    words = [TOKEN.findall(text) for text in (before, after)]
    if len(words[0]) != len(words[1]):
        return False
    renamed = {pair for pair in zip(*words, strict=True) if pair[0] != pair[1]}
    old, new = [pair[0] for pair in renamed], [pair[1] for pair in renamed]
    one_to_one = len(set(old)) == len(old) and len(set(new)) == len(new)
    # A new name that the old text has for something else, or the other way round, is another program.
    fresh = not set(new) & set(words[0]) and not set(old) & set(words[1])
    return one_to_one and fresh and all(_declares(before, a) and _declares(after, b) for a, b in renamed)


def _declares(text: str, name: str) -> bool:
    """Says whether the text declares a variable of this name, as in `float acc_s[88];`: no function, type or field."""
    return name.isidentifier() and bool(re.search(rf"[\w>*&] {name}(?:\[\w+\])?(?:;| =)", text))


def cubin(text: str) -> bytes:
    """Compiles CUDA text to machine code. Raises NotCompiled."""
    from tl_attention.compiler.compiler_errors import first_error

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cu").write_text(text)
        command = [nvcc(), *OPTIONS, *includes(), "-o", "kernel.cubin", "kernel.cu"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            raise NotCompiled(f"nvcc: {first_error(done.stdout + done.stderr)}")
        return (Path(folder) / "kernel.cubin").read_bytes()


@functools.cache
def machine_code(text: str) -> str:
    """Returns resource usage and SASS of CUDA text, with addresses and encodings. Raises NotCompiled."""
    from tl_attention.lab.machine_code.sass import cuobjdump

    code = cubin(text)
    return cuobjdump(code, "--dump-resource-usage") + cuobjdump(code, "--dump-sass")


def nvcc() -> str:
    """Returns the path of the nvcc that is found first."""
    from tl_attention.compiler.toolchain import chosen_nvcc

    return str(chosen_nvcc(None).home / "bin/nvcc")


def includes() -> tuple[str, ...]:
    """Returns nvcc's options that say where the headers of the generated code are."""
    root = package("tilelang")
    return f"-I{root / 'src'}", f"-I{root / '3rdparty/cutlass/include'}"


def package(name: str) -> Path:
    """Returns the folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    assert found and found.origin, f"{name} is not installed"
    return Path(found.origin).parent
