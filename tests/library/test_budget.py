"""Each room has a budget of code lines, as `python tests/library/code_lines.py` counts them.

Whoever makes a room grow says in the commit what leaves, or raises the room's line here in that commit and says why.
Where a room has shrunk by more than SLACK, its line here follows.
"""

from pathlib import Path

import pytest
from code_lines import code_lines, count

SLACK = 40
BUDGET = {
    "tl_attention": 265,
    "problem": 945,
    "schedule": 2075,
    "program": 1195,
    "kernels": 4580,
    "launch": 835,
    "codeproof": 5570,
    "compiler": 580,
    "op": 2510,
    "lab": 10235,
    "tools": 6545,
    "tests": 1315,
    "tests/library": 16505,
    "tests/proof": 4585,
    "tests/lab": 8570,
    "library": 18530,
    "path": 9585,
}


def test_no_room_is_larger_than_its_budget_and_no_budget_than_its_room() -> None:
    found = count()
    assert {*found} == {*BUDGET}
    over = {name: (found[name], most) for name, most in BUDGET.items() if not most - SLACK <= found[name] <= most}
    assert not over, "rooms whose lines are not what is said of them: (lines, budget)"


@pytest.mark.parametrize(
    "name, text, lines",
    [
        ("a.py", '"""Doc."""\n\nimport os\nfrom a import (\n    b,\n)\n\n# Why.\nX = 1  # One.\n', 1),
        ("a.py", 'def f():\n    """Doc\n    goes on."""\n    return """a\n    b"""\n', 3),
        ("a.py", 'class A:\n    x = (\n        1,\n    )\n\n    "no docstring"\n', 5),
        ("a.cuh", "// Why.\nint a;\n\n/* b\nc */ int d;  // e\n", 2),
    ],
)
def test_what_counts_as_a_line_of_code(name: str, text: str, lines: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert code_lines(tmp_path / name) == lines
