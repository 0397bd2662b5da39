"""What is wrong with text that is no YAML, in the words of a schedule's author: a tab, a missing colon, an open bracket.

PyYAML says what its parser met. The line of the text says what the author left out.
"""

from __future__ import annotations

import re

import yaml

from tl_attention.schedule.options import OPTION_KEYS

# A key with its colon at the start of a line; what stands behind it.
KEY = re.compile(r"(?P<indent> *)(?:- +)?(?P<key>[\w.]+) *:(?:\s+(?P<value>.*))?$")
OPEN = re.compile(r"expected ',' or '(?P<close>[\]}])', but got '(?P<got>[^']*)'")
NOT_ENDED = (":", "<stream end>", "<document start>", "<document end>", "?")
OPENING = {"]": "[", "}": "{"}
MOST_SHOWN = 40


def not_yaml(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """The line to blame, counted from 1, and the words."""
    # PyYAML ends lines there too.
    lines = re.split(r"\r\n|[\r\n\x85\u2028\u2029]", text.removeprefix("\ufeff"))
    problem, mark = error.problem or error.context or "", error.problem_mark or error.context_mark
    began = error.context_mark
    at = mark.line if mark else 0
    line = lines[at] if at < len(lines) else ""
    column = mark.column if mark else 0
    if error.context == "while scanning a simple key" and began:
        # PyYAML notices a missing colon only on the line after it.
        return began.line + 1, no_colon(lines[began.line])
    if opened := OPEN.search(problem):
        is_key = opened["got"] == "<scalar>" and KEY.match(line) is not None
        return _not_closed(opened, began.line if began else at, at, is_key)
    if "quoted scalar" in (error.context or "") and began:
        return began.line + 1, f"the quote {lines[began.line][began.column : began.column + 1]} is not closed"
    if problem == "mapping values are not allowed here":
        return _second_colon(lines, at, column)
    if "cannot start any token" in problem or problem.startswith("expected alphabetic or numeric character"):
        if line[column : column + 1] == "\t":
            return at + 1, "a tab ('\\t'), where YAML takes spaces alone: replace it by spaces"
        began_at = began.column if began and began.line == at else column
        return at + 1, f"a text cannot begin with {line[began_at : began_at + 1]}: put the whole text in quotes"
    if problem.startswith("expected <block end>"):
        return at + 1, _no_level(line, column)
    if began and began.line != at:
        problem = f"{problem} ({error.context} that starts on line {began.line + 1})"
    return at + 1, problem


def no_colon(line: str) -> str:
    """What is missing in a line that should be a key and its value."""
    text = re.split(r"\s#", line)[0].strip().removeprefix("- ").strip()
    if found := re.fullmatch(r"([\w.]+):(\S.*)", text):
        return f"no space behind the colon of {_cut(found[1])}, expected `{_cut(f'{found[1]}: {found[2]}')}`"
    if found := re.fullmatch(r"([\w.]+) *= *(.*)", text):
        return f"`=` behind {_cut(found[1])}, expected a colon and a space, `{_cut(f'{found[1]}: {found[2]}')}`"
    if found := re.fullmatch(r"([\w.]+)\s+(\S.*)", text):
        return f"no colon behind {_cut(found[1])}, expected `{_cut(f'{found[1]}: {found[2]}')}`"
    if re.fullmatch(r"[\w.]+", text):
        return f"no colon behind {_cut(text)}, expected `{_cut(text)}:`"
    return "expected `key: value`, a colon and a space"


def _not_closed(opened: re.Match[str], began: int, at: int, is_key: bool) -> tuple[int, str]:
    close, got = opened["close"], opened["got"]
    if at != began and (is_key or got in NOT_ENDED):
        return began + 1, f"the bracket {OPENING[close]} is not closed, expected {close} at the end of the list or keys"
    return at + 1, f"a comma or a closing {close} is missing in what {OPENING[close]} opens on line {began + 1}"


def _second_colon(lines: list[str], at: int, column: int) -> tuple[int, str]:
    """A colon where no key can stand: two on one line, a key that is indented too far, or a line before it without one."""
    line = lines[at]
    key = KEY.match(line)
    if key and column > key.end("key") + 1 and key["value"]:
        name, inside = key["key"], key["value"]
        if name in OPTION_KEYS:
            return at + 1, f"two keys on one line, expected braces around the second, `{_cut(f'{name}: {{{inside}}}')}`"
        if re.search(r"[,;]\s*[\w.]+$", line[:column]):
            return at + 1, "two keys on one line, expected each key on a line of its own"
        text = inside.replace("'", "''")
        return at + 1, f"a text with a colon inside needs quotes, expected `{name}: {_quoted(text)}`"
    above = next((n for n in range(at - 1, -1, -1) if lines[n].strip() and not lines[n].lstrip().startswith("#")), None)
    if above is None or key is None:
        return at + 1, "a colon where no key can stand: a text with a colon inside needs quotes"
    if not (KEY.match(lines[above]) or lines[above].lstrip().startswith("-")):
        return above + 1, no_colon(lines[above])
    return at + 1, (
        f"{_cut(key['key'])} is indented, but the key on line {above + 1} has a value already: remove the spaces before "
        f"{_cut(key['key'])}, or indent it as the keys beside it are"
    )


def _no_level(line: str, column: int) -> str:
    before = line[:column].strip()
    if not before or before == "-":
        return "the indentation is that of no line above, expected the keys of one level to begin in the same column"
    return f"text behind {_cut(before)!r}: a text that begins with a bracket or a quote needs quotes around all of it"


def _quoted(text: str) -> str:
    return f"'{text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + '...'}'"


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
