"""Counts lines of code, room by room: without blank lines, comments, docstrings and imports.

    python tests/library/code_lines.py [CHECKOUT]

CUDA beside the kernels (`*.cuh`), and C, count like Python. The path is what somebody reads who wants to know one
kernel from YAML to result: problem, schedule, program, what kernels share, the warp-specialised kernel, and op.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LAB, PACKAGE = "lab", "tl_attention"
TOOLS, TESTS = "tools", "tests"
# These rooms have a budget each; a file that is in none of them counts for the package's top.
ROOMS = ("problem", "schedule", "program", "kernels", "launch", "codeproof", "compiler", "op", LAB)
PATH = ("problem", "schedule", "program", "kernels/shared", "kernels/warp_specialized", "op")
LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
CUDA_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def code_lines(path: Path) -> int:
    """Returns how many lines of code a file has."""
    text = path.read_text()
    if path.suffix != ".py":
        return sum(bool(line.strip()) for line in CUDA_COMMENT.sub("", text).splitlines())
    left_out = {number for node in ast.walk(ast.parse(text)) for number in _left_out(node)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len({n for t in tokens if t.type not in LAYOUT for n in range(t.start[0], t.end[0] + 1)} - left_out)


def _left_out(node: ast.AST) -> Iterator[int]:
    """Yields the numbers of a node's lines if it is an import, of its docstring's if it has one."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if ast.get_docstring(node, clean=False) is None:
            return
        node = node.body[0]
    elif not isinstance(node, ast.Import | ast.ImportFrom):
        return
    yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def files(folder: Path) -> list[Path]:
    """Returns the files of code below a folder."""
    return sorted(path for suffix in ("py", "cuh", "c", "h") for path in folder.rglob(f"*.{suffix}"))


def count(root: Path = ROOT) -> Counter[str]:
    """Returns the lines of each room, of tools, of each folder of tests, of all but the laboratory, and of the path."""
    found: Counter[str] = Counter()
    package = root / PACKAGE
    for path in files(package):
        place, lines = path.relative_to(package), code_lines(path)
        room = place.parts[0] if place.parts[0] in ROOMS else PACKAGE
        found[room] += lines
        found["library"] += lines * (room != LAB)
        found["path"] += lines * str(place).startswith(tuple(f"{part}/" for part in PATH))
    found[TOOLS] = sum(map(code_lines, files(root / TOOLS)))
    for path in files(root / TESTS):
        found["/".join(path.relative_to(root).parts[:-1][:2])] += code_lines(path)
    return found


if __name__ == "__main__":
    for name, lines in count(*map(Path, sys.argv[1:])).items():
        print(f"{name:14}{lines:7,}")
