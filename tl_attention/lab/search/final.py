"""The best of a search meet once more: in a fresh process, verified wholly, for longer, with tensors of their own."""

from __future__ import annotations

from dataclasses import replace

from tl_attention.lab.measure.records import Row
from tl_attention.lab.measure.session import ROUNDS_AGAINST, Session
from tl_attention.lab.measure.timing import CALLS_PER_ROUND
from tl_attention.lab.measure.trials import Progress
from tl_attention.lab.search.search import kernel_of
from tl_attention.lab.search.study import QUEUED, Study
from tl_attention.problem.shape import AttentionShape

FINALISTS = 8  # of one problem
# What the final times of each finalist, at most so many rounds of it.
SECONDS_EACH, MOST_ROUNDS = 5.0, 99
# The baseline under a second name: how far it is from itself is what the final cannot tell.
AGAIN = " again"


def final(study: Study, shape: AttentionShape, session: Session, progress: Progress) -> list[Row]:
    """Verifies and times the best trials, and returns their rows; the first one is the baseline's.

    The baseline is the best that was queued, or else the best of all. Each row has its ratios to the baseline, round by
    round. Of several problems each has its rows, and fewer finalists. Raises CallFailed where the machine fails.
    """
    timed, rows = study.timed, list[Row]()
    if not timed:
        return []
    best = next((result for result in timed if result.source == QUEUED), timed[0])
    finalists = timed[: max(FINALISTS // (1 + len(study.others)), 2)]
    for one in (shape, *study.others):
        baseline = kernel_of(study, one, best)
        others = [kernel_of(study, one, result) for result in finalists if result is not best]
        tickets = session.compile([baseline, replace(baseline, name=baseline.name + AGAIN), *others], progress)
        session.verify_pending(tickets, progress)
        rounds = round(SECONDS_EACH * 1000 / best.ms / (CALLS_PER_ROUND + 1))
        session.time(
            [ticket for ticket in tickets if not ticket.done],
            min(max(rounds, ROUNDS_AGAINST), MOST_ROUNDS),
            progress,
            against={ticket.candidate.name: baseline.name for ticket in tickets},
            warm_s=SECONDS_EACH,
        )
        rows += [ticket.row for ticket in tickets]
    return rows
