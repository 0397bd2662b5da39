"""Evaluations side by side, one row for each submission and test line."""

from __future__ import annotations

from collections.abc import Sequence

from tl_attention.leaderboard.results import Evaluation, LineResult

HEADINGS = (
    "submission",
    "test (batch, heads, seq, head_dim)",
    "status",
    "n",
    "best ms",
    "mean ms",
    "median ms",
    "p10-p90 ms",
    "max |error|",
    "stopped by",
)
# Which columns a narrow terminal keeps; 10 and 11 are relative to a baseline.
PRIORITY = (0, 1, 2, 5, 4, 10, 3, 11, 6, 8, 7, 9)


def title(evaluation: Evaluation) -> str:
    """What the evaluations of one table share."""
    return f"{evaluation.mode}, {evaluation.environment.get('device_name', 'unknown device')}"


def headings(baseline: str | None) -> tuple[str, ...]:
    """The table's headings; with a baseline, the speed relative to it by mean and by best."""
    return HEADINGS if baseline is None else (*HEADINGS, f"mean / {baseline}", f"best / {baseline}")


def lines(evaluations: Sequence[tuple[str, Evaluation]], baseline: str | None = None) -> list[tuple[str, ...]]:
    """The table's rows, grouped by test line so that the submissions stand beside each other.

    Args:
        evaluations: (name, evaluation) of the submissions, all on the same test lines.
        baseline: the name of the one that the others' speed is relative to: its milliseconds divided by theirs.
    """
    reference = dict(evaluations).get(baseline) if baseline else None
    found = []
    for number in range(len(evaluations[0][1].rows)):
        for name, evaluation in evaluations:
            row = evaluation.rows[number]
            found.append((name, *_cells(row)))
            if baseline is not None:
                found[-1] += _ratios(row, reference.rows[number] if reference else None)
    return found


def _cells(row: LineResult) -> tuple[str, ...]:
    test = f"({row.line.batch_size}, {row.line.num_heads}, {row.line.seq_len}, {row.line.head_dim})"
    status = row.outcome.status if row.tight or not row.accepted else f"{row.outcome.status}, not tight"
    error = "" if row.max_abs_error is None else f"{row.max_abs_error:.2e}"
    timing = row.timing
    if timing is None:
        return (test, status, "", "", "", "", "", error, "")
    times = (f"{ms:.4f}" for ms in (timing.best_ms, timing.mean_ms, timing.median_ms))
    return (test, status, str(timing.n), *times, f"{timing.p10_ms:.4f}-{timing.p90_ms:.4f}", error, timing.stopped_by)


def _ratios(row: LineResult, reference: LineResult | None) -> tuple[str, str]:
    if reference is None or row.timing is None or reference.timing is None:
        return "", ""
    mean, best = reference.timing.mean_ms / row.timing.mean_ms, reference.timing.best_ms / row.timing.best_ms
    return f"{mean:.3f}", f"{best:.3f}"
