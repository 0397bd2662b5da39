"""Shows to people a table of a kernel's mutants, and the mutants that a person must judge."""

from __future__ import annotations

from collections import Counter

from rich.table import Table

from code_mutants.integers import OPERATIONS as OF_INTEGERS
from code_mutants.judged import reason
from code_mutants.operations import OPERATIONS
from code_mutants.proving import BROKEN
from code_mutants.rows import CLASSES, DIFFERENT, NUMBERS, TO_JUDGE, Row, Rows, is_device

WIDTH = 160


def table(rows: Rows) -> Table:
    """Makes the table of a kernel's mutants, operation by class."""
    counts: Counter[tuple[str, str]] = Counter()
    for row, found in rows.classes():
        counts[_operation(row), found.partition(":")[0]] += 1
    total = sum(counts.values())
    judged = sum(count for (_, found), count in counts.items() if found == TO_JUDGE)
    share = f"{100 * judged / total:.2f} % to judge" if total else "nothing yet"
    shown = Table(title=f"{rows.head['kernel']}: {total:,} of {rows.head['mutants']:,} mutants, {share}")
    for heading in ("operation", *CLASSES, "all"):
        shown.add_column(heading, justify="left" if heading == "operation" else "right")
    for operation in (f"{part}{operation}" for part in ("", "launch: ") for operation in (*OPERATIONS, *OF_INTEGERS)):
        line = [counts[operation, found] for found in CLASSES]
        if sum(line):
            shown.add_row(operation, *(f"{count:,}" if count else "" for count in line), f"{sum(line):,}")
    sums = [sum(count for (_, of), count in counts.items() if of == found) for found in CLASSES]
    shown.add_row("all", *(f"{count:,}" for count in sums), f"{total:,}")
    return shown


def _operation(row: Row) -> str:
    return str(row["operation"]) if is_device(row) else f"launch: {row['operation']}"


def kinds_of_numbers(rows: Rows) -> str:
    """Says how many mutants there are of each kind that is left to the numbers."""
    counts = Counter(found for _, found in rows.classes() if found.startswith(NUMBERS))
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) or "none"


def to_judge(rows: Rows) -> list[str]:
    """Returns a line for each reason of a person, and for each mutant without one or at which the proof broke."""
    left = [(row, found) for row, found in rows.classes() if found in (TO_JUDGE, DIFFERENT, BROKEN)]
    reasons = Counter(_reason(rows, row) for row, found in left if found != BROKEN)
    told = [f"judged, {count}: {why}" for why, count in reasons.items() if why]
    return told + [
        f"{found}: {_operation(row)}, {_place(row)} ({row['kind']}): {row['shown'][:WIDTH]}"
        + (f"  [{words[:WIDTH]}]" if (words := row["words"] or row.get("differs", "")) else "")
        for row, found in left
        if found == BROKEN or not _reason(rows, row)
    ]


def _place(row: Row) -> str:
    return f"{row['kernel']}, line {row['line']}" if "kernel" in row else f"line {row['line']}"


def _reason(rows: Rows, row: Row) -> str:
    return reason(str(row.get("kernel", rows.head["kernel"])), row)
