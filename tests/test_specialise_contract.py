"""The contract of modules that travel in a submission: comments, and what is refused."""

from __future__ import annotations

from textwrap import dedent
from types import SimpleNamespace

import pytest
from small_programs import packed

from tl_attention.errors import InputError
from tl_attention.leaderboard.specialise import layout
from tl_attention.leaderboard.specialise.text import specialised


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
    monkeypatch.setattr(layout, "version", lambda package: "0.1.0")
    with pytest.raises(
        InputError, match=r"^ruff is 0\.1\.0, .*`pip install ruff==[\d.]+`, or pack without it: --embed"
    ):
        layout.formatted("x = 1\n")
