"""How evaluations are shown: as the class harness prints one, and as a table side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tl_attention.leaderboard.results import Evaluation, LineResult

TIMES = ("mean", "std", "err", "best", "worst")
SHAPE = "test (batch, heads, seq, head_dim)"
MS = ("best ms", "mean ms", "median ms", "p10-p90 ms")
HEADINGS = ("submission", SHAPE, "status", "n", *MS, "max |error|", "stopped by")
# Which columns a narrow terminal keeps; 10 and 11 are relative to a baseline.
PRIORITY = (0, 1, 2, 5, 4, 10, 3, 11, 6, 8, 7, 9)


def class_lines(evaluation: Evaluation) -> Iterator[str]:
    """What the public class harness prints: one line a test, then the check."""
    for number, row in enumerate(evaluation.rows):
        if row.timing is None:
            told = [f"status={row.outcome.status}"]
            told += [f"max_abs_error={row.max_abs_error:.3g}"] if row.max_abs_error is not None else []
            told += [f"reason={row.outcome.reason}"] if row.outcome.reason else []
        else:
            told = [f"runs={row.timing.n}", *(f"{name}={getattr(row.timing, f'{name}_ms'):.4f} ms" for name in TIMES)]
        yield f"{evaluation.mode}.{number}: {', '.join(told)}"
    yield f"check: {'pass' if evaluation.accepted else 'fail'}"


def title(evaluation: Evaluation) -> str:
    """What the evaluations of one table share."""
    return f"{evaluation.mode}, {evaluation.environment.get('device_name', 'unknown device')}"


def headings(baseline: str | None) -> tuple[str, ...]:
    """The table's headings; with a baseline, the speed relative to it by mean and by best."""
    return HEADINGS if baseline is None else (*HEADINGS, f"mean / {baseline}", f"best / {baseline}")


def lines(evaluations: Sequence[tuple[str, Evaluation]], baseline: str | None = None) -> list[tuple[str, ...]]:
    """The table's rows for evaluations of the same test lines, grouped by line; speeds are relative to `baseline`."""
    found = []
    for number in range(len(evaluations[0][1].rows)):
        reference = next((evaluation.rows[number] for name, evaluation in evaluations if name == baseline), None)
        for name, evaluation in evaluations:
            row = evaluation.rows[number]
            found.append((name, *_cells(row), *(() if baseline is None else _ratios(row, reference))))
    return found


def _cells(row: LineResult) -> tuple[str, ...]:
    line, timing = row.line, row.timing
    status = row.outcome.status if row.tight or not row.accepted else f"{row.outcome.status}, not tight"
    error = "" if row.max_abs_error is None else f"{row.max_abs_error:.2e}"
    times = ("",) * (1 + len(MS))
    if timing is not None:
        milliseconds = (f"{ms:.4f}" for ms in (timing.best_ms, timing.mean_ms, timing.median_ms))
        times = (str(timing.n), *milliseconds, f"{timing.p10_ms:.4f}-{timing.p90_ms:.4f}")
    shape = f"({line.batch_size}, {line.num_heads}, {line.seq_len}, {line.head_dim})"
    return (shape, status, *times, error, timing.stopped_by if timing else "")


def _ratios(row: LineResult, reference: LineResult | None) -> tuple[str, str]:
    if reference is None or row.timing is None or reference.timing is None:
        return "", ""
    mean, best = reference.timing.mean_ms / row.timing.mean_ms, reference.timing.best_ms / row.timing.best_ms
    return f"{mean:.3f}", f"{best:.3f}"
