"""Mutants of integer expressions, of the device code that the proof reads and the host's plan, are drawn by a seed.

An expression is one that the reader knows: its tree stands in the tree of what the reader made of the line. Each line
is as likely as any other, then each expression in the line.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from code_mutants.operations import DEVICE, HOST, Mutant
from code_mutants.ranges import BLOCKS, LARGEST_OF, Range, drawn_range, largest, log_drawn, subjects
from code_mutants.reading import Code
from tl_attention.codeproof.read.calls import CALLS
from tl_attention.codeproof.read.expression import Tree, parsed, walk
from tl_attention.codeproof.read.nodes import all_nodes, expressions_of
from tl_attention.codeproof.read.text import Kernel, read

UNCAST = "(int64_t)"
# What becomes of an expression: with a range in which it changes, with a number, or with a cast of a wide one.
RANGED = {"within +1": "({range} ? ({x}) + 1 : ({x}))", "within -1": "({range} ? ({x}) - 1 : ({x}))"}
NUMBERED = {"min": "min(({x}), {number})", "max": "max(({x}), {number})"}
NUMBERED |= {"bits": "(({x}) & {number})", "modulo": "(({x}) % {number})"}
CASTS = {"cast to int": "((int)({x}))", "cast to short": "((short)({x}))", "uncast": ""}
FORMS = RANGED | NUMBERED | CASTS
OPERATIONS = (*FORMS,)
# A range is drawn four times as often as another change, and the host's plan as every eighth place.
TURNS = (*FORMS, *3 * (*RANGED,))
OF_HOST = 8
# The largest numbers, and how many draws there are for each mutant that is asked for.
MOST, MOST_BITS = 1 << 20, 20
ATTEMPTS = 200
# Columns that are shown before and behind a change.
CONTEXT = 30
# A line of the host's plan with an expression, or with an integer.
OF_PLAN = re.compile(r' *(?:"text": "([^"]+)"|(?:"\w+": )?(\d+),?)')
WORD = re.compile(r"(?<![\w.:>])(?:[A-Za-z_]\w*|\d+)(?![\w.:(])")


@dataclass(frozen=True)
class IntegerMutant(Mutant):
    """An IntegerMutant changes the expression from column `place` to column `stop`."""

    stop: int = 0
    number: int = 0  # of the min, max, & or % that the expression is put under; a cast has none
    range: Range | None = None  # where the expression changes by 1
    kernel: str = ""  # whose code it is of

    @property
    def key(self) -> str:
        limits = f"{self.range.above}<{self.range.subject}<{self.range.below}" if self.range else self.number
        return f"{self.part}:{self.operation}:{self.line}:{self.place}-{self.stop}:{limits}:{self.kernel}"

    def of(self, code: Code) -> Code:
        lines = getattr(code, self.part).split("\n")
        line = lines[self.line]
        lines[self.line] = f"{line[: self.place]}{self.changed(code)}{line[self.stop :]}"
        return self.with_lines(code, lines)

    def expression(self, code: Code) -> str:
        """Returns the text of the expression before the change."""
        return str(getattr(code, self.part).split("\n")[self.line][self.place : self.stop])

    def changed(self, code: Code) -> str:
        """Returns the text of the expression behind the change."""
        text = self.range.text if self.range else ""
        return FORMS[self.operation].format(x=self.expression(code), number=self.number, range=text)

    def shown(self, code: Code) -> str:
        line = getattr(code, self.part).split("\n")[self.line]
        before, after = line[: self.place].strip()[-CONTEXT:], line[self.stop :][:CONTEXT]
        return f"{before}{{{self.expression(code)} -> {self.changed(code)}}}{after}"


@dataclass(frozen=True)
class _Place:
    """A _Place is an expression in a line. `subjects` are what a range may be of there."""

    part: str
    line: int
    kind: str
    start: int
    stop: int
    text: str
    wide: bool
    subjects: tuple[str, ...]

    @property
    def literal(self) -> bool:
        return self.text.isdecimal()

    @property
    def casts(self) -> list[int]:
        """Returns where casts to 64 bits begin in the expression."""
        return [match.start() for match in re.finditer(re.escape(UNCAST), self.text)]


def read_again(code: Code) -> Kernel:
    """Reads the device code; raises SyntaxError where that cannot be."""
    return read(code.source, CALLS)


def trees_of(kernel: Kernel) -> dict[int, set[Tree]]:
    """Returns, for each line, the trees of all integer expressions that the reader found in it."""
    found: dict[int, set[Tree]] = defaultdict(set)
    for node in all_nodes(kernel.body):
        for expression in expressions_of(node):
            found[node.line].update(walk(expression.tree))
    return found


def spans(text: str, known: set[Tree]) -> Iterator[tuple[int, int]]:
    """Yields the columns (start, stop) of expressions whose trees are known: names, numbers, groups, min and max."""
    opened: list[int] = []
    found = [match.span() for match in WORD.finditer(text)]
    for place, character in enumerate(text):
        if character == "(":
            opened.append(place)
        elif character == ")" and opened:
            start = opened.pop()
            call = re.search(r"\w*$", text[:start])
            name = call[0] if call else ""
            if name in ("", "min", "max"):
                found.append((start - len(name), place + 1))
    for start, stop in sorted(found):
        try:
            if parsed(text[start:stop]).tree in known:
                yield start, stop
        except SyntaxError:
            continue


def places(code: Code, kernel: Kernel) -> dict[int, list[_Place]]:
    """Returns the expressions of each line of the device code that the proof reads."""
    lines, trees = code.source.split("\n"), trees_of(kernel)
    wide = {*kernel.signature.of("int64_t")}
    scopes = subjects(kernel)
    found: dict[int, list[_Place]] = {}
    for line, known in sorted(trees.items()):
        kind, there = kernel.kinds[line], scopes[line]
        found[line] = [
            _Place(DEVICE, line, kind, *span, text, is_wide(parsed(text).tree, wide), there)
            for span in spans(lines[line], known)
            for text in (lines[line][slice(*span)],)
        ]
    return {line: of_line for line, of_line in found.items() if of_line}


def is_wide(tree: Tree, wide: set[str]) -> bool:
    """Says whether an expression has 64 bits; `wide` are the names of integers that have."""
    kind, *parts = tree
    if kind in ("number", "name"):
        return parts[0] in wide
    if kind == "call":
        return parts[0] == "int64_t" or any(is_wide(part, wide) for part in parts[1:])
    return any(is_wide(part, wide) for part in parts)


def host_places(code: Code) -> dict[int, list[_Place]]:
    """Returns the expressions of each line of the host's plan that is an integer or an expression."""
    there = tuple(sorted({size.name for size in code.plan.sizes} & {*LARGEST_OF}))
    found: dict[int, list[_Place]] = {}
    for line, whole in enumerate(code.host_plan.split("\n")):
        if match := OF_PLAN.fullmatch(whole):
            # The reader knows C's division.
            text, first = (match[1] or match[2]).replace("//", "/ "), match.start(match.lastindex or 0)
            known = {*walk(parsed(text).tree)}
            found[line] = [
                _Place(HOST, line, "launch", first + start, first + stop, whole[first:][start:stop], False, there)
                for start, stop in spans(text, known)
            ]
    return found


def draw_integers(code: Code, count: int, seed: str) -> list[IntegerMutant]:
    """Draws so many mutants, or fewer where the code has no such ones. No two are equal, and each line is as likely."""
    kernel, draw = read_again(code), random.Random(seed)
    trees, parts = trees_of(kernel), {DEVICE: places(code, kernel), HOST: host_places(code)}
    found: dict[str, IntegerMutant] = {}
    for _ in range(ATTEMPTS * count):
        if len(found) == count:
            break
        operation = draw.choice(TURNS)
        part = HOST if draw.randrange(OF_HOST) == 0 else DEVICE
        lines = {line: some for line, of_line in parts[part].items() if (some := [*_fitting(operation, of_line)])}
        if not lines:
            continue
        mutant = _drawn(operation, code, draw.choice(lines[draw.choice([*lines])]), draw)
        if mutant.key not in found and _changes(mutant, code, trees):
            found[mutant.key] = mutant
    return [*found.values()]


def _fitting(operation: str, of_line: Sequence[_Place]) -> Iterator[_Place]:
    """Yields what an operation changes: a cast wide expressions, a number those that are none, a range subjects."""
    for place in of_line:
        fits = place.wide if operation in CASTS else not place.literal if operation in NUMBERED else place.subjects
        if fits and (operation != "uncast" or place.casts):
            yield place


def _drawn(operation: str, code: Code, place: _Place, draw: random.Random) -> IntegerMutant:
    start, stop = place.start, place.stop
    if operation == "uncast":
        start += draw.choice(place.casts)
        stop = start + len(UNCAST)
    of_range = None
    if operation in RANGED:
        subject = draw.choice(place.subjects)
        most = LARGEST_OF[subject] if BLOCKS[1] in place.subjects else largest(subject, code.variant)
        of_range = drawn_range(subject, most, code.variant.some_group, draw)
    number = NUMBERS[operation](draw) if operation in NUMBERED else 0
    return IntegerMutant(
        place.part, operation, place.line, place.kind, start, drawn=True, stop=stop, number=number, range=of_range
    )


# The numbers beside min, max, & and %.
NUMBERS: dict[str, Callable[[random.Random], int]] = {
    "min": lambda draw: log_drawn(draw, 0, MOST),
    "max": lambda draw: log_drawn(draw, 0, MOST),
    "bits": lambda draw: (1 << draw.randrange(1, MOST_BITS)) - 1,
    "modulo": lambda draw: log_drawn(draw, 2, MOST),
}


def _changes(mutant: IntegerMutant, code: Code, trees: dict[int, set[Tree]]) -> bool:
    """Says whether the reader sees the change in this line, or another cast; not so in template arguments."""
    if mutant.part == HOST or mutant.operation in CASTS:
        return True
    try:
        return trees_of(read_again(mutant.of(code)))[mutant.line] != trees[mutant.line]
    except SyntaxError:
        return False
