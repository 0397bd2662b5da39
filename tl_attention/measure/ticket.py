"""A candidate on its way through a session, and the row that comes of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from tl_attention.measure import products, timing
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.compilation import Compiled
from tl_attention.measure.records import Row, problem_of
from tl_attention.measure.sampling import Samples


@dataclass(eq=False)
class Ticket:
    """`row` is what is known of the candidate so far; it is complete, and recorded, where the ticket is `done`.

    `refusal` says why the candidate was refused before it was compiled, "" if it was not.
    """

    candidate: Candidate
    row: Row
    refusal: str = ""
    compiled: Compiled | None = None
    done: bool = False

    @classmethod
    def of(cls, candidate: Candidate, *, refusal: str = "", **fields: Any) -> Ticket:
        """At the start: `fields` of the row are those that all of a run have in common."""
        row = Row(candidate.name, candidate.label, candidate.sizes, problem_of(candidate.shape), "ok", **fields)
        return cls(candidate, row, refusal)

    @property
    def is_verified(self) -> bool:
        """Whether it may be timed."""
        return self.row.status == "ok" and self.row.verified_shapes > 0

    def update(self, **fields: Any) -> None:
        """Fill fields of the row."""
        self.row = replace(self.row, **fields)


def times(
    samples: Samples, flops: int, rounds: int, product: str = products.MATMUL, of_product: Samples | None = None
) -> dict[str, Any]:
    """The fields of a row that sampling fills; without the samples of a plain product it is compared with none."""
    found = samples.timing
    rate = timing.tflops(flops, found.median_ms)
    plain = timing.tflops(products.flops(product), of_product.timing.median_ms) if of_product else None
    return {
        **asdict(found),
        "rounds_ms": tuple(round(ms, 6) for ms in samples.medians_ms),
        "tflops": rate,
        "product": product,
        "matmul_tflops": plain,
        "percent_of_matmul": 100 * rate / plain if plain else None,
        "method": timing.method(rounds),
    }
