"""The specialiser on small programs: the same results, and what is left of them; and the contract of their modules."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tl_attention.leaderboard.specialise import layout, source
from tl_attention.leaderboard.specialise.text import specialised

NUMBERS = count()


class Op(NamedTuple):
    kind: str
    lag: int
    columns: tuple[int, int] | None = None


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModuleType]]:
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


CHOICES = '''
    """Choices."""

    def entry(*, options, n):
        x = abs(n)
        if options.way == "first":
            x += 1
        elif options.way == "second":
            x += 2
        else:
            x += 3
        x = x * 2 if options.doubled else x
        if x > 5 or options.doubled:
            x += 4
        if x > 5 and not options.doubled:
            x += 5
        return options.nothing or x
    '''


@pytest.mark.parametrize(
    "way,doubled,left",
    [
        ("first", True, ["x += 1", "x = x * 2", "x += 4", "return x"]),
        ("second", False, ["x += 2", "if x > 5:", "x += 4", "if x > 5:", "x += 5", "return x"]),
        ("third", True, ["x += 3", "x = x * 2", "x += 4", "return x"]),
    ],
)
def test_what_is_known_is_decided(program, way, doubled, left):
    options = SimpleNamespace(way=way, doubled=doubled, nothing=None)
    text = packed(program(main=CHOICES), options=options, n=3)
    assert body(text)[1:] == left


def test_a_number_gets_the_name_of_its_field_and_a_nothing_does_not(program):
    module = program(
        main='''
        """Numbers."""

        def entry(*, tile, loop, width):
            size = tile.rows * width
            return size + loop.lag + tile.offset - loop.back
        '''
    )
    tile, loop = SimpleNamespace(rows=128, offset=0), SimpleNamespace(lag=2, back=-1)
    text = packed(module, tile=tile, loop=loop, width=8)
    assert text.splitlines()[2:4] == ["WIDTH = 8", "ROWS = 128"]
    assert body(text) == ["size = ROWS * WIDTH", "return size + 2 + 1"]


OPERATIONS = '''
    """Operations."""

    def entry(*, loop, n):
        found = []
        for t, operations in loop:
            iteration(operations, t, found)
        for each in range(n):
            found.append(each)
        return found

    def iteration(operations, t, found):
        for op in operations:
            operation(op)(op, t - op.lag, found)

    def operation(op):
        """What runs an operation."""
        return KINDS[op.kind]

    def load(op, t, found):
        found.append(("load", t))

    def exp(op, t, found):
        columns = op.columns or (0, 8)
        found.append(("exp", t, columns))
        if columns[0] == 0:
            found.append("first")

    KINDS = {"load": load, "exp": exp}
    '''


def test_operations_are_written_out(program):
    first = (Op("load", 0), Op("exp", 0, (0, 4)), Op("exp", 0, (4, 8)))
    text = packed(program(main=OPERATIONS), loop=((2, first),), n=3)
    assert "KINDS" not in text and "operation(" not in text
    assert body(text, "iteration") == ["load(found)", "exp(found, columns=(0, 4))", "exp(found, columns=(4, 8))"]
    assert body(text, "load") == ['found.append(("load", 2))']
    assert "if columns[0] == 0:" in body(text, "exp")


def test_each_list_of_operations_gets_its_function(program):
    loop = ((0, (Op("load", 0),)), (1, (Op("load", 1), Op("exp", 1))))
    text = packed(program(main=OPERATIONS), loop=loop, n=2)
    assert body(text)[1:3] == ["iteration(found)", "iteration_2(found)"]
    assert body(text, "iteration_2") == ["load(found)", "exp(found)"]


def test_parameters_that_decide_nothing_are_gone(program):
    module = program(
        main='''
        """Parameters."""

        def entry(*, c, n):
            return both(n, c, 1) + both(n + 1, c, 2)

        def both(x, c, y, z=3, unused=None):
            return twice(x + c.step, c) + y + z

        def twice(x, c):
            return chosen(x, c) * 2

        def chosen(x, c):
            if c.negative:
                return -x
            return kept(x)

        def kept(x):
            return x
        '''
    )
    c = SimpleNamespace(step=4, negative=False)
    text = packed(module, c=c, n=5)
    assert "def both(x, y):" in text and "def twice(x):" in text and "chosen" not in text and "kept" not in text
    assert body(text, "twice") == ["return x * 2"] and body(text, "both") == ["return twice(x + STEP) + y + 3"]


def test_a_loop_that_ends_early_and_one_over_the_unknown_stay(program):
    module = program(
        main='''
        """Loops."""

        def entry(*, names, n):
            found = []
            for name in names:
                if len(found) > n:
                    break
                found.append(name)
            for other in sorted(names):
                found.append(other)
            for a, b in zip(names, names[1:]):
                found.append(a + b)
            return found
        '''
    )
    text = packed(module, names=("a", "b", "c"), n=1)
    assert text.count("for ") == 3


MASK = '''
    """What is hidden."""

    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Mask:
        """A class's words do not travel."""

        right: int | None = None

        @property
        def grows(self):
            return self.right is not None

        def end(self, blocks, key):
            """The end."""
            return blocks if self.right is None else min(blocks, key + self.right)

    FULL = Mask()
    '''
ASKS = '''
    """A kernel."""

    from PACKAGE.mask import FULL

    def entry(*, mask, n):
        blocks = abs(n)
        if mask == FULL:
            blocks += 0
        blocks = mask.end(blocks, 3)
        return (blocks, 1) if mask.grows else blocks
    '''


def test_methods_of_what_is_known_become_functions(program):
    module = program(mask=MASK, main=ASKS)
    mask = importlib.import_module(module.__name__.replace("main", "mask"))
    text = packed(module, "main.py", "mask.py", mask=mask.Mask(right=1), n=7)
    assert "class" not in text and "def end(blocks):" in text and "return blocks, 1" in text
    text = packed(module, "main.py", "mask.py", mask=mask.FULL, n=7)
    assert "end" not in text and body(text) == ["blocks = abs(N)", "blocks += 0", "return blocks"]


def test_fields_that_nothing_reads_are_gone(program):
    module = program(
        main='''
        """State."""

        from types import SimpleNamespace

        def entry(*, deep, n):
            s = SimpleNamespace(ring=SimpleNamespace(depth=abs(n), unread=1), other=[n])
            return s.ring.depth + (len(s.other) if deep else 0)
        '''
    )
    text = packed(module, deep=False, n=3)
    assert body(text) == ["s = SimpleNamespace(ring=SimpleNamespace(depth=abs(N)))", "return s.ring.depth"]


def test_stars_of_the_known_become_keywords(program):
    module = program(
        main='''
        """Stars."""

        def entry(*, options, n):
            return dict(n=abs(n), **options, **more(options))

        def more(options):
            return {"more": True} if options else {}
        '''
    )
    assert body(packed(module, options={"order": [1, 2]}, n=1)) == ["return dict(n=abs(N), order=[1, 2], more=True)"]


def test_comments_stay_with_what_they_belong_to(program):
    module = program(
        main='''
        """The module.

        Its second paragraph.
        """

        # A constant.
        DEPTH = 3  # and beside it

        # --- a part of the file ---

        # On the function.
        def entry(*, way, n):
            """Its docstring."""
            # Why x.
            x = abs(n)

            # Why the choice.
            if way:
                # Of the one.
                x += DEPTH
            else:
                # Of the other, isn't it: "quoted" \\\\.
                x -= 1
            return x
        '''
    )
    text = packed(module, way=True, n=1)
    expected = """
        # The module.
        #
        # Its second paragraph.

        # A constant.
        DEPTH = 3  # and beside it


        # On the function.
        def entry():
            \"""Its docstring.\"""
            # Why x.
            x = abs(N)
            # Of the one.
            x += DEPTH
            return x
        """
    assert dedent(expected).strip() in text and "Why the choice" not in text and "a part" not in text
    text = packed(module, way=False, n=1)
    assert '# Of the other, isn\'t it: "quoted" \\\\.\n' in text and "DEPTH" not in text


BROKEN = {
    "another module": ("import math\n\ndef entry(*, n):\n    return n\n", "import math"),
    "all names": ("from math import *\n\ndef entry(*, n):\n    return n\n", r"from math import \*"),
    "a statement": ("print(1)\n\ndef entry(*, n):\n    return n\n", r"print\(1\)"),
    "a name of the program": (
        "def entry(*, n):\n    other = n\n\ndef other():\n    pass\n",
        r"entry binds \['other'\]",
    ),
    "a name twice": (
        "def entry(*, n):\n    return n\n\nclass A:\n    def entry(self):\n        pass\n",
        "defined twice",
    ),
    "a comment beside": ("def entry(*, n):\n    return n  # so\n", r"lines \[4\]: a comment stands above a statement"),
    "a comment inside": ("def entry(*, n):\n    return (\n        # so\n        n\n    )\n", r"lines \[5\]"),
    "stars": ("def entry(*, n):\n    return f(*[n])\n\ndef f(x):\n    return x\n", "expected every argument by itself"),
    "an undecided name": ("from math import pi\n\ndef entry(*, n):\n    return abs(pi * n)\n", "not decided"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_module_that_breaks_the_contract_is_told(program, name):
    text, words = BROKEN[name]
    program(main=f'"""A module."""\n\n{text}')
    arguments = {"n": SimpleNamespace() if name == "an undecided name" else 1}
    with pytest.raises(AssertionError, match=words):
        specialised(("main.py",), "entry", arguments)


def test_without_the_formatter_one_line_says_how_to_get_it(monkeypatch):
    from tl_attention.errors import InputError

    monkeypatch.setattr(layout, "version", lambda package: "0.1.0")
    with pytest.raises(
        InputError, match=r"^ruff is 0\.1\.0, .*`pip install ruff==[\d.]+`, or pack without it: --embed"
    ):
        layout.formatted("x = 1\n")
