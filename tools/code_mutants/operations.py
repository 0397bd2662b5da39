"""A mutant of generated code has a line deleted or rewritten, two neighbours swapped, or an integer changed.

Only lines that the proof reads are rewritten: a line gets a condition, another choice, a cast, a declaration, another
type or a second statement.
"""

from __future__ import annotations

import itertools
import operator
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from code_mutants.reading import Code, Verdict, is_numbers, reads_of_launch, synchronises
from code_mutants.rewrites import REWRITES
from code_mutants.statements import Span, neighbours

DEVICE, HOST = "source", "host_plan"
DELETED, SWAPPED = "deleted", "swapped"
CHANGES: dict[str, Callable[[int], int]] = {
    **{f"{by:+}": partial(operator.add, by) for by in (1, -1, 2, -2, 3, -3)},
    "doubled": partial(operator.mul, 2),
}
# The changes of an integer in a line without loop, condition or variable.
FEW = ("+1", "-1", "doubled")
OPERATIONS = (DELETED, SWAPPED, *CHANGES, *REWRITES)
CONTEXT = 40
# Kinds of lines that steer: a loop, a condition, an integer.
CONTROL = ("integer", "control")
COMMENT = re.compile(r"/\*.*?\*/|//.*")
INTEGER = re.compile(r"(?<![\w.])\d+(?![\w.])")


@dataclass(frozen=True)
class Mutant:
    """A mutant is one change of one part of the code. Lines and columns count from 0.

    `place` is the column of the integer that changes, or the number of the rewriting; `spans` are the two statements
    that change places. `kind` is what the changed line is read as. `drawn` says whether the mutant was drawn of the
    lines that are left to the numbers.
    """

    part: str
    operation: str
    line: int
    kind: str
    place: int = -1
    spans: tuple[Span, Span] | None = None
    drawn: bool = False

    @property
    def key(self) -> str:
        """Returns a key that no other mutant of the kernel has."""
        second = self.spans[1].start if self.spans else self.place
        return f"{self.part}:{self.operation}:{self.line}:{second}"

    def of(self, code: Code) -> Code:
        """Returns the code with the change."""
        lines = getattr(code, self.part).split("\n")
        if self.operation in REWRITES:
            lines[self.line] = self._rewritten(lines[self.line])
        elif self.spans:
            first, second = self.spans
            between = lines[first.stop : second.start]
            lines[first.start : second.stop] = [
                *lines[second.start : second.stop],
                *between,
                *lines[first.start : first.stop],
            ]
        elif self.operation == DELETED:
            del lines[self.line]
        else:
            lines[self.line] = self._changed(lines[self.line])
        return self.with_lines(code, lines)

    def with_lines(self, code: Code, lines: Sequence[str]) -> Code:
        """Returns the code with these lines in the mutant's part."""
        text = "\n".join(lines)
        return replace(code, source=text) if self.part == DEVICE else replace(code, host_plan=text)

    def _changed(self, line: str) -> str:
        match = INTEGER.match(line, self.place)
        assert match, f"no integer in column {self.place} of {line!r}"
        return f"{line[: match.start()]}{CHANGES[self.operation](int(match[0]))}{line[match.end() :]}"

    def _rewritten(self, line: str) -> str:
        return [*REWRITES[self.operation](line)][self.place]

    def shown(self, code: Code) -> str:
        """Shows the change in a line of text."""
        lines = getattr(code, self.part).split("\n")
        if self.spans:
            return "  <->  ".join(_told(lines[span.start : span.stop]) for span in self.spans)
        line = lines[self.line]
        if self.operation == DELETED:
            return line.strip()
        if self.operation in REWRITES:
            return _marked(line.strip(), self._rewritten(line).strip())
        changed = self._changed(line)
        start, stop = max(0, self.place - CONTEXT), self.place + CONTEXT
        return f"{line[start:stop].strip()}  ->  {changed[start:stop].strip()}"


def _marked(before: str, after: str) -> str:
    """Shows what stands around a change, and the change itself in braces."""
    start = _shared(before, after)
    same = _shared(before[start:][::-1], after[start:][::-1])
    old, new = before[start : len(before) - same], " ".join(after[start : len(after) - same].split())
    return f"{before[max(0, start - CONTEXT) : start]}{{{old} -> {new}}}{before[len(before) - same :][:CONTEXT]}"


def _shared(one: str, other: str) -> int:
    """Returns how many characters two texts share at their beginning."""
    return next((place for place, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _told(statement: Sequence[str]) -> str:
    first = next(line for line in statement if not line.strip().startswith("#")).strip()
    return first if len(statement) == 1 else f"{first} ... ({len(statement)} lines)"


def mutants(code: Code, verdict: Verdict, numbers: int, seed: str) -> list[Mutant]:
    """Makes the mutants of the kernel's body and of the launch.

    Lines that are read have all mutants; the other lines have all deletions, and mutants that are drawn.

    No two mutants give the same text.
    """
    body = [line for line, kind in enumerate(verdict.kinds) if kind]
    lines = code.source.split("\n")
    read = [line for line in body if not is_numbers(verdict.kinds[line])]
    found = [Mutant(DEVICE, DELETED, line, verdict.kinds[line]) for line in body if lines[line].strip()]
    found += _swaps(lines, verdict.kinds)
    found += [mutant for line in read for mutant in _integers(DEVICE, line, lines[line], verdict.kinds[line])]
    found += [mutant for line in read for mutant in _rewrites(line, lines[line], verdict.kinds[line])]
    launch = code.host_plan.split("\n")
    for line in reads_of_launch(launch):
        found += [Mutant(HOST, DELETED, line, "launch"), *_integers(HOST, line, launch[line], "launch")]
    drawn = draw(lines, verdict.kinds, numbers, seed)
    return list(_distinct(code, [*drawn, *found]))


def draw(lines: Sequence[str], kinds: Sequence[str], count: int, seed: str) -> list[Mutant]:
    """Draws `count` mutants of the lines that are left to the numbers: each line is as likely as any other."""
    of_line: dict[int, list[Mutant]] = {}
    for line, kind in enumerate(kinds):
        if is_numbers(kind) and lines[line].strip():
            of_line[line] = [Mutant(DEVICE, DELETED, line, kind), *_integers(DEVICE, line, lines[line], kind)]
    for first, second in neighbours(lines, list(of_line)):
        lone = first.stop == first.start + 1 == second.start and second.stop == second.start + 1
        if lone and lines[first.start].strip() != lines[second.start].strip():
            of_line[first.start].append(Mutant(DEVICE, SWAPPED, first.start, kinds[first.start], spans=(first, second)))
    generator = random.Random(seed)
    left = sum(len(choices) for choices in of_line.values())
    found: list[Mutant] = []
    for _ in range(min(count, left)):
        line = generator.choice(list(of_line))
        choices = of_line[line]
        found.append(replace(choices.pop(generator.randrange(len(choices))), drawn=True))
        if not choices:
            del of_line[line]
    return found


def _swaps(lines: Sequence[str], kinds: Sequence[str]) -> Iterator[Mutant]:
    """Swaps two statements of one block that synchronise, with none between them that does."""
    for pair in neighbours(lines, [line for line, kind in enumerate(kinds) if synchronises(kind)]):
        texts = [[line.strip() for line in lines[span.start : span.stop]] for span in pair]
        if texts[0] != texts[1]:
            line = next(line for line in range(pair[0].start, pair[0].stop) if synchronises(kinds[line]))
            yield Mutant(DEVICE, SWAPPED, pair[0].start, kinds[line], spans=pair)


def _rewrites(line: int, text: str, kind: str) -> Iterator[Mutant]:
    for operation, rewrite in REWRITES.items():
        for place, _ in enumerate(rewrite(text)):
            yield Mutant(DEVICE, operation, line, kind, place)


def _integers(part: str, line: int, text: str, kind: str) -> Iterator[Mutant]:
    # In the host's plan // divides.
    bare = text if part == HOST else COMMENT.sub(lambda comment: " " * len(comment[0]), text)
    for match in INTEGER.finditer(bare):
        for operation in CHANGES if kind.startswith(CONTROL) else FEW:
            change = CHANGES[operation]
            if change(int(match[0])) != int(match[0]):
                yield Mutant(part, operation, line, kind, place=match.start())


def sample(found: Sequence[Mutant], count: int, seed: str) -> list[Mutant]:
    """Draws `count` mutants, one of each operation on each part in turn; the numbers' lines count as a part."""
    generator = random.Random(seed)
    groups: dict[tuple[str, str, bool], list[Mutant]] = {}
    for mutant in generator.sample(found, len(found)):
        groups.setdefault((mutant.part, mutant.operation, mutant.drawn), []).append(mutant)
    turns = itertools.zip_longest(*(groups[key] for key in sorted(groups)))
    return [mutant for turn in turns for mutant in turn if mutant][:count]


def _distinct(code: Code, found: Sequence[Mutant]) -> Iterator[Mutant]:
    """Yields the first mutant of each text, whatever its indentation: drawn mutants come first and stay."""
    seen: set[tuple[str, int]] = set()
    for mutant in found:
        lines = getattr(mutant.of(code), mutant.part).split("\n")
        text = (mutant.part, hash("\n".join(map(str.strip, lines))))
        if text not in seen:
            seen.add(text)
            yield mutant
