"""What a packed program may not hold, found in its text without the packer's help."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

# What the file around the program has.
PROVIDED = {"T", "SimpleNamespace", "tilelang"}
# The package, its modules and what makes the text.
FILES = re.compile(r"\w\.(?:py|yaml)\b|tl_attention|\boptions?\b|\bschedules?\b|\bPrograms?\b|\bvariants?\b")


def dead_parts(text: str, entry: str = "attention_kernel") -> list[str]:
    """One sentence for each thing that nothing uses, and for each choice that is none."""
    tree = ast.parse(text)
    found = (_unused, _unread_names, _idle_parameters, _settled_conditions, _undefined, _twice)
    return [sentence for check in found for sentence in check(tree, entry)]


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef)]


def _defined(tree: ast.Module) -> list[str]:
    """The names at the top level, as often as they are defined there."""
    assigned = [t.id for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]  # type: ignore
    return [*(function.name for function in _functions(tree)), *assigned]


def _read(node: ast.AST) -> Counter[str]:
    return Counter(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _unused(tree: ast.Module, entry: str) -> Iterator[str]:
    read = _read(tree)
    for function in _functions(tree):
        # Not by itself alone.
        read -= _read(function) if set(_read(function)) & {function.name} else Counter()
    yield from (f"{name} is not used" for name in _defined(tree) if not read[name] and name != entry)


def _unread_names(tree: ast.Module, entry: str) -> Iterator[str]:
    for function in _functions(tree):
        for inner in ast.walk(function):
            if isinstance(inner, ast.FunctionDef):
                read = sum((_read(statement) for statement in inner.body), Counter[str]())
                references = {a.arg for a in inner.args.args if a.annotation and ast.unparse(a.annotation) == "T.Ref"}
                stored = {n.id for n in ast.walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
                yield from (f"{inner.name} takes {a.arg} and does not use it" for a in inner.args.args
                            if not read[a.arg] and a.arg not in references & stored)  # fmt: skip
                yield from (f"{inner.name} does not read {name}" for name in stored - set(read) - references - {"_"})


def _calls(tree: ast.Module, name: str) -> list[ast.Call]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == name]


def _idle_parameters(tree: ast.Module, entry: str) -> Iterator[str]:
    """Parameters for which all calls pass one constant, and defaults that no call leaves to be used."""
    for function in _functions(tree):
        names = [arg.arg for arg in function.args.args]
        passed: dict[str, set[str]] = {name: set() for name in names}
        calls = _calls(tree, function.name)
        for call in calls:
            given = dict(zip(names, call.args)) | {k.arg: k.value for k in call.keywords if k.arg}
            for name in names:
                passed[name].add(ast.unparse(given[name]) if name in given else "its default")
        for name, texts in passed.items():
            if len(texts) == 1 and _is_constant(ast.parse(*texts, mode="eval").body, tree):
                yield f"{function.name}: every call passes {texts.pop()} for {name}"
        if function.args.defaults and all(len(c.args) + len(c.keywords) == len(names) for c in calls):
            yield f"{function.name} has defaults that no call uses"


def _is_constant(node: ast.expr, tree: ast.Module) -> bool:
    """Whether an expression has nothing but constants: literals, and names that the text gives such a value."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    constants = {t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets}  # type: ignore
    return names <= constants | {"True", "False", "None"}


def _settled_conditions(tree: ast.Module, entry: str) -> Iterator[str]:
    """Conditions without anything that could differ; names of a function that are constants count as such."""
    for function in _functions(tree):
        local = {
            n.targets[0].id: n.value
            for n in ast.walk(function)
            if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
        }
        for node in ast.walk(function):
            tests: list[ast.expr] = []
            if isinstance(node, (ast.If, ast.IfExp, ast.While)):
                tests = [node.test]
            elif isinstance(node, ast.BoolOp):
                tests = node.values
            elif isinstance(node, ast.Compare):
                tests = [node]
            for test in tests:
                names = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
                parts = [test, *(local[name] for name in names & set(local))]
                if all(_is_constant(part, tree) for part in parts if part is not test) and _is_constant(
                    ast.Tuple([n for n in ast.walk(test) if isinstance(n, ast.Name) and n.id not in local], ast.Load()),
                    tree,
                ):
                    yield f"{function.name}: {ast.unparse(test)} is decided"


def _undefined(tree: ast.Module, entry: str) -> Iterator[str]:
    for function in _functions(tree):
        bound = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        bound |= {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
        bound |= {n.name for n in ast.walk(function) if isinstance(n, ast.FunctionDef)}
        known = {*_defined(tree), *bound, *PROVIDED, *dir(builtins)}
        yield from (f"{function.name} reads {name}, which is not there" for name in set(_read(function)) - known)


def _twice(tree: ast.Module, entry: str) -> Iterator[str]:
    yield from (f"{name} is defined {times} times" for name, times in Counter(_defined(tree)).items() if times > 1)


# --- words -----------------------------------------------------------------------------------------------------------


def loose_words(text: str) -> list[str]:
    """Comments and docstrings that speak of what the text does not hold."""
    tree = ast.parse(text)
    comments = [
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    ]
    docstrings = [doc for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and (doc := ast.get_docstring(n))]
    names = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name)}
    names |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)} | {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}  # fmt: skip
    # CUDA's function is tl_attention_hold.
    names |= {name.removeprefix("tl_attention_") for name in re.findall(r"\btl_attention_\w+", text)}
    found = []
    for words in (*comments, *docstrings):
        found += [f"`{name}`: {words}" for name in re.findall(r"`(\w+)`", words) if name not in names]
        found += [words for _ in FILES.findall(words)]
    return found
