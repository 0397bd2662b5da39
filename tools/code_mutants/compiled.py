"""Compilers say which mutants are no C++ at all, and which give the same machine code."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from machine_code import OPTIONS, NotCompiled, includes, machine_code, nvcc

# Kernels that the front end reads at a time: it spends most of its 2.5 s on the headers.
BATCH = 40
NAME = "attention_kernel"
# The front end stops before any code is made, and tells all that it found.
STOP = '\n#line 1 "the end"\nstatic_assert(false, "front end only");\n'
ERROR = re.compile(r"^(\S.*?)\((\d+)\): error: (.*)$", re.MULTILINE)
IN_MUTANT = re.compile(r"\bmutant_(\d+)\b")


def errors_of(sources: Sequence[str]) -> list[str]:
    """Returns the first error that nvcc's front end finds in each kernel, "" where it finds none.

    The sources are the same up to the kernel.
    """
    found = ["" if _balanced(source) else "braces that do not match" for source in sources]
    waiting = [number for number, error in enumerate(found) if not error]
    for start in range(0, len(waiting), BATCH):
        batch = waiting[start : start + BATCH]
        # A template is instantiated once: an error in it is told of one kernel, so ask again without that one.
        while batch and (errors := _front_end([sources[number] for number in batch])):
            for place, error in errors.items():
                found[batch[place]] = error
            batch = [number for number in batch if not found[number]]
    return found


def _balanced(source: str) -> bool:
    """Says whether braces match, and the function does not end before its text does."""
    depth, text = 0, source[source.rindex("__launch_bounds__") :].rstrip()
    for place, character in enumerate(text):
        depth += (character == "{") - (character == "}")
        if depth < 0 or (depth == 0 and character == "}" and place + 1 < len(text)):
            return False
    return depth == 0


def _front_end(sources: Sequence[str]) -> dict[int, str]:
    """Returns the first error of each kernel for which the front end tells an error, by the kernel's number."""
    start = sources[0].index('extern "C" __global__ void')
    parts = [sources[0][:start]]
    for number, source in enumerate(sources):
        assert source.startswith(parts[0]), "the text before the kernel differs"
        parts.append(f'#line 1 "mutant_{number}"\n{source[start:].replace(NAME, f"kernel_{number}")}\n')
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernels.cu").write_text("".join(parts) + STOP)
        options = [option for option in OPTIONS if option != "-cubin"]
        command = [nvcc(), "-ptx", "-Xcicc", "--error_limit=100000", *options, *includes(), "kernels.cu"]
        told = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    output = told.stdout + told.stderr
    if "front end only" not in output:
        raise NotCompiled(f"the front end did not come to the end: {output[-500:]}")
    return _by_kernel(output)


def _by_kernel(output: str) -> dict[int, str]:
    errors: dict[int, str] = {}
    matches = list(ERROR.finditer(output))
    for match, following in zip(matches, [*matches[1:], None]):
        if match[1] == "the end":
            continue
        trace = IN_MUTANT.findall(output[match.start() : following.start() if following else len(output)])
        if not trace:
            raise NotCompiled(f"an error of no mutant: {match[0]}")
        errors.setdefault(int(trace[-1]), match[3])
    return errors


def same_machine_code(before: str, after: str) -> bool:
    """Says whether two device sources give the same SASS. Raises NotCompiled where a source gives none."""
    return machine_code(before) == machine_code(after)
