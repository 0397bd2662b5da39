"""The servers' rules about the code of a submission, one function each, read off its syntax tree.

A rule yields (line, sentence). The rules are heuristics that follow import aliases and assignments to plain names;
`cache_rules` holds those about results kept between calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tl_attention.leaderboard.cache_rules import kept_outputs, pointer_caches
from tl_attention.leaderboard.names import Names, string_in

Found = Iterator[tuple[int, str]]

LAUNCHERS = (
    "asyncio.create_subprocess",
    "os.exec",
    "os.popen",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "subprocess.",
)
INSTALLER = r"\b(?:pip3?|apt|apt-get|aptitude|conda|mamba|micromamba|uv|easy_install)\b"
INSTALLATION = re.compile(rf"{INSTALLER}.*\binstall\b|\bconda\s+create\b", re.DOTALL)
TIMERS = ("torch.cuda.Event", "torch.Event", "torch.cuda.synchronize", "torch.accelerator.synchronize", "time.")
TIMER_METHODS = ("elapsed_time",)
OWN_PACKAGE = "tl_attention"


def code_violations(text: str) -> list[tuple[int, str]]:
    """(line, sentence) of each rule that the code breaks."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return [(error.lineno or 0, f"The file is not Python: {error.msg}.")]
    except (ValueError, RecursionError, MemoryError) as error:
        return [(0, f"The file is not Python: {error}.")]
    names = Names(tree)
    rules = (entry_point, own_package, installations, patched_timers, stdout_uses, pointer_caches, kept_outputs)
    return sorted({found for rule in rules for found in rule(tree, names)})


def entry_point(tree: ast.Module, names: Names) -> Found:
    """`custom_kernel(data)` stands at the top level and takes one argument."""
    kernels = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "custom_kernel"]
    if not kernels and "custom_kernel" not in names.module_level and not names.imports("custom_kernel"):
        yield 0, "No custom_kernel is defined at the top level, expected `def custom_kernel(data)`."
    for node in kernels:
        arguments = node.args
        places = len(arguments.posonlyargs + arguments.args)
        required = places - len(arguments.defaults) + sum(default is None for default in arguments.kw_defaults)
        if required > 1 or not (places or arguments.vararg):
            yield node.lineno, "custom_kernel cannot be called with one argument, expected `def custom_kernel(data)`."


def own_package(tree: ast.Module, names: Names) -> Found:
    """The file stands alone: the servers do not have this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [item.name for item in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        else:
            continue
        if any(module.split(".")[0] == OWN_PACKAGE for module in modules):
            yield node.lineno, f"The file imports {OWN_PACKAGE}, which no server has."


def installations(tree: ast.Module, names: Names) -> Found:
    """No package is installed, neither through a process nor through pip's own modules."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = names.dotted(node.func)
        if called.startswith(LAUNCHERS):
            words = " ".join(text for part in _arguments(node) for text in names.strings(part))
            if INSTALLATION.search(words):
                yield node.lineno, f"{called} installs a package, which the servers flag."
        elif called.split(".")[0] in ("pip", "ensurepip"):
            yield node.lineno, f"{called} installs a package, which the servers flag."


def patched_timers(tree: ast.Module, names: Names) -> Found:
    """The clocks and events that time the submission are left as they are."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            name = names.dotted(node)
            if _is_timer(name) or node.attr in TIMER_METHODS:
                yield node.lineno, f"{name or node.attr} is replaced: a patched timer."
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            module = string_in(node.slice) or ""
            if names.dotted(node.value) == "sys.modules" and _is_timer(f"{module}."):
                yield node.lineno, f"sys.modules[{module!r}] is replaced: a patched timer."
        elif isinstance(node, ast.Call) and len(node.args) >= 1:
            name = _patched_by_call(node, names)
            if _is_timer(name):
                yield node.lineno, f"{name} is replaced: a patched timer."


def stdout_uses(tree: ast.Module, names: Names) -> Found:
    """sys.stdout is None in the worker of the class harness: a use of its attributes needs a guard.

    A file that puts an object of its own there is left alone.
    """
    if any(
        isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and names.dotted(node) == "sys.stdout"
        for node in ast.walk(tree)
    ):
        return

    def walk(node: ast.AST, guarded: bool) -> Found:
        if isinstance(node, ast.Attribute) and names.dotted(node.value) == "sys.stdout" and not guarded:
            yield (
                node.lineno,
                f"sys.stdout.{node.attr} is used, and sys.stdout is None in the worker: this crashes; print does not.",
            )
        if isinstance(node, (ast.If, ast.IfExp, ast.While)):
            guarded = guarded or _mentions_stdout(node.test, names)
        elif isinstance(node, ast.BoolOp):
            guarded = guarded or _mentions_stdout(node.values[0], names)
        elif isinstance(node, ast.Try):
            guarded = guarded or bool(node.handlers)
        for child in ast.iter_child_nodes(node):
            yield from walk(child, guarded)

    yield from walk(tree, False)


def _mentions_stdout(test: ast.expr, names: Names) -> bool:
    """Whether a condition asks about sys.stdout itself; `sys.stdout.isatty()` asks too late."""
    attributes = [node.value for node in ast.walk(test) if isinstance(node, ast.Attribute)]
    return any(names.dotted(node) == "sys.stdout" and node not in attributes for node in ast.walk(test))


def _is_timer(name: str) -> bool:
    return any(name.startswith(timer) if timer.endswith(".") else _within(name, timer) for timer in TIMERS)


def _within(name: str, outer: str) -> bool:
    return name == outer or name.startswith(outer + ".")


def _patched_by_call(node: ast.Call, names: Names) -> str:
    """What setattr, delattr or mock.patch would replace, as a dotted name; "" for any other call."""
    first, *rest = node.args
    function = node.func.id if isinstance(node.func, ast.Name) else names.dotted(node.func)
    if names.dotted(node.func) == "unittest.mock.patch":
        return string_in(first) or ""
    by_name = (
        function.split(".")[-1] in ("setattr", "delattr") or names.dotted(node.func) == "unittest.mock.patch.object"
    )
    name = string_in(rest[0]) if by_name and rest else None
    return "" if name is None else f"{names.dotted(first)}.{name}"


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]
