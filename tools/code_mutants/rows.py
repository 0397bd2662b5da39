"""A file of JSON lines says what became of each mutant of a kernel; a mutant's class follows from its line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import click

from code_mutants.integers import OPERATIONS as OF_INTEGERS
from code_mutants.judging import DIFFERS, NOT_RUN, OTHER_NUMBERS, SAME_EVENTS
from code_mutants.operations import DEVICE, Mutant
from code_mutants.proving import ACCEPTED, BROKEN, REFUSED, Answer
from code_mutants.reading import Code, Verdict, is_numbers, numbers_in

Row = dict[str, Any]
NOT_CPP, EQUIVALENT, NUMBERS, TO_JUDGE = "not C++", "equivalent", "numbers", "to judge"
# Accepted, though it does something else.
DIFFERENT = "different"
CLASSES = (REFUSED, NOT_CPP, EQUIVALENT, NUMBERS, DIFFERENT, TO_JUDGE, BROKEN)
# What a judgement by machine says of a mutant. Nothing said is to judge.
JUDGED = {SAME_EVENTS: EQUIVALENT, NOT_RUN: EQUIVALENT, OTHER_NUMBERS: f"{NUMBERS}: integers", DIFFERS: DIFFERENT}
# These operations keep what small problems do, on purpose: equal events say nothing about them.
OF_LARGE = ("conditional", "chosen", "cast")
SAME, OTHER = "same machine code", "other machine code"


def class_of(row: Row, digest: str) -> str:
    """Returns the class of a mutant; the numbers' class has its kind, as in "numbers: mask". `digest` is the kernel's.

    A change that keeps the events is equivalent in a line that is wholly read, and left to the numbers in a line that
    is read in part. A change that shows in large problems alone is neither.
    """
    if row["outcome"] in (REFUSED, BROKEN):
        return str(row["outcome"])
    if row["outcome"] != ACCEPTED:
        return TO_JUDGE
    if row.get("error"):
        return NOT_CPP
    if is_numbers(row["kind"]):
        return str(row["kind"])
    if row.get("machine") == SAME:
        return EQUIVALENT
    if row.get("operation") in OF_INTEGERS:
        return JUDGED.get(row.get("judged", ""), TO_JUDGE)
    if not digest or row["digest"] != digest:
        return TO_JUDGE
    if row.get("operation") == "swapped":
        # Another line stands in its place, unchanged.
        return numbers_in(row["kind"]) or EQUIVALENT
    if row.get("operation") in OF_LARGE:
        return TO_JUDGE
    # A line that the proof read, and now leaves to the numbers, may say anything.
    if is_numbers(row["after"]):
        return TO_JUDGE
    return numbers_in(row["kind"]) or numbers_in(row["after"]) or EQUIVALENT


def is_device(row: Row) -> bool:
    """Says whether the change is in the device's code."""
    return str(row["key"]).startswith(DEVICE + ":")


class Rows:
    """Rows are the file of one kernel. What is learnt of a mutant is added as its own line, under the mutant's key."""

    def __init__(self, file: Path):
        self.file = file
        self.head: Row = {}
        self.found: dict[str, Row] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            row = json.loads(line)
            if "key" in row:
                self.found.setdefault(row["key"], {}).update(row)
            else:
                self.head = row

    def begin(self, kernel: str, code: Code, verdict: Verdict, count: int) -> None:
        """Notes which kernel and code the rows are of. Raises UsageError if the file has rows of something else."""
        text = sha256(f"{code.source}\0{code.host_plan}".encode()).hexdigest()[:12]
        self.begin_with({"kernel": kernel, "code": text, "digest": verdict.digest, "mutants": count})

    def begin_with(self, head: Row) -> None:
        """Notes what the rows are of. Raises UsageError if the file has rows of something else."""
        if self.head and self.head != head:
            raise click.UsageError(f"{self.file} has rows of {self.head}, expected {head}: remove it")
        if not self.head:
            self.head = head
            self._write(head)

    def add(self, mutant: Mutant, answer: Answer, shown: str) -> None:
        """Adds the proof's answer about a mutant."""
        self.learn(
            mutant.key,
            operation=mutant.operation,
            line=mutant.line + 1,
            kind=mutant.kind,
            drawn=mutant.drawn,
            shown=shown,
            outcome=answer.outcome,
            words=answer.words,
            digest=answer.digest,
            after=answer.kind,
        )

    def learn(self, key: str, **fields: Any) -> None:
        """Adds more fields about a mutant."""
        row = {"key": key, **fields}
        self.found.setdefault(key, {}).update(row)
        self._write(row)

    def classes(self) -> Iterator[tuple[Row, str]]:
        """Yields every row and its class."""
        return ((row, class_of(row, self.head["digest"])) for row in self.found.values())

    def _write(self, row: Row) -> None:
        with self.file.open("a") as file:
            file.write(f"{json.dumps(row)}\n")
