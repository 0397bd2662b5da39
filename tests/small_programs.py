"""Small programs for the tests of the specialiser: modules of a package of their own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tl_attention.leaderboard.specialise import source
from tl_attention.leaderboard.specialise.text import specialised

NUMBERS = count()


def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
    """Writes modules of a package of their own, by name, and imports the last."""
    package = tmp_path / f"program{next(NUMBERS)}"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(source, "PACKAGE", package)

    def write(**texts: str) -> ModuleType:
        for name, text in texts.items():
            (package / f"{name}.py").write_text(dedent(text).replace("PACKAGE", package.name))
        importlib.invalidate_caches()
        return importlib.import_module(f"{package.name}.{name}")

    yield write
    for name in [name for name in sys.modules if name.startswith(package.name)]:
        del sys.modules[name]


def packed(module: ModuleType, *files: str, **arguments: Any) -> str:
    """The text of `entry(**arguments)`, which gives what the program gives."""
    text = specialised(files or ("main.py",), "entry", arguments, ("loop",))
    names: dict[str, Any] = {"SimpleNamespace": SimpleNamespace}
    exec(text, names)
    assert names["entry"]() == module.entry(**arguments), text
    return text


def body(text: str, function: str = "entry") -> list[str]:
    """The lines of a function, less its docstring."""
    lines = text.partition(f"def {function}(")[2].partition("\n\n\n")[0].splitlines()[1:]
    return [line.strip() for line in lines if line.strip()]
