"""Each room of the package has a duty, imports go down the list in docs/DESIGN.md, and nothing goes in a circle."""

from __future__ import annotations

import ast
import functools
import re
from graphlib import TopologicalSorter

from conftest import ROOT

PACKAGE = ROOT / "tl_attention"
DESIGN = (ROOT / "docs/DESIGN.md").read_text()
LIST = DESIGN[DESIGN.index("    tl_attention/\n") :].partition("\n\n")[0]
# Rooms of the laboratory stand deeper.
LISTED = [
    "lab." * (len(indent) > 6) + name.removesuffix(".py")
    for indent, names in re.findall(r"^( {6,8})((?:\w+(?:/|\.py) )+)", LIST, re.MULTILINE)
    for name in re.findall(r"\w+(?=/)|\w+\.py", names)
]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@functools.cache
def imported(name: str) -> frozenset[str]:
    """Returns the package's modules that a module imports, anywhere in it, for type checkers too; not its packages."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            below = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {inner if inner in MODULES else str(node.module) for inner in below}
    # `from tl_attention import __version__` reads what stands before all imports.
    return frozenset(module for module in found if module in MODULES and module != "tl_attention") - {name}


def room(module: str) -> str:
    first, *inner = module.split(".")[1:]
    return f"lab.{inner[0]}" if first == "lab" and inner else first


def test_every_room_is_listed_and_says_its_duty() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    rooms |= {f"lab.{path.parent.name}" for path in PACKAGE.glob("lab/*/__init__.py")}
    rooms |= {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    assert sorted(LISTED) == sorted(rooms)
    for path in PACKAGE.rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), f"{path} does not say its duty"


def test_every_path_that_the_design_names_exists() -> None:
    paths = set(re.findall(r"`([\w./]+(?:/|\.(?:py|yaml|patch)))`", DESIGN))
    assert len(paths) > 40
    assert [path for path in sorted(paths) if not any((above / path).exists() for above in (ROOT, PACKAGE))] == []


def test_imports_go_down_the_list() -> None:
    rank = {name: number for number, name in enumerate(LISTED)}
    for name in MODULES:
        if name not in ("tl_attention", "tl_attention.__main__"):
            later = [other for other in imported(name) if rank[room(other)] > rank[room(name)]]
            assert not later, f"{name} imports {later}, whose rooms stand below its own"


def test_nothing_is_imported_in_a_circle() -> None:
    TopologicalSorter({name: imported(name) for name in MODULES if name != "tl_attention"}).prepare()


def test_each_folder_of_tests_runs_alone() -> None:
    """A test imports from its own folder, and from what all share, which is directly in tests/."""
    folders = [ROOT / "tests" / name for name in ("library", "proof", "lab")]
    assert {path.parent for path in (ROOT / "tests").rglob("test_*.py")} == {*folders}
    for folder in folders:
        elsewhere = {path.stem for other in folders if other != folder for path in other.rglob("*.py")}
        for path in folder.rglob("*.py"):
            named = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
            assert elsewhere.isdisjoint(named), path


def test_no_file_is_long() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
        if (count := len(path.read_text().splitlines())) > 400
    }
    assert not long
