"""Tests check the drawings of two iterations, and the facts that they show."""

from itertools import combinations, pairwise

import pytest
from pictures import iterations
from pictures.steady_state import Filled, InFlight, Iterations

from tl_attention.program.derivation import derive
from tl_attention.program.program import Program
from tl_attention.schedule.files.named import resolve


def program(name: str) -> Program:
    return derive(resolve(name).schedule)


def rows(shown: Iterations) -> list[str]:
    """Returns each row as kind, first statement and block."""
    return [f"{row.kind} {row.operations[0].statement} {row.block}" for row in shown.rows]


@pytest.mark.parametrize("name", iterations.DRAWN)
def test_labels_lie_within_the_picture_and_apart(name) -> None:
    figure = iterations.picture(name).figure
    boxes = {f"{n} {text.get_text()}": text.get_window_extent() for n, text in enumerate(figure.axes[0].texts)}
    assert len(boxes) > 40
    assert not [(a, b) for (a, one), (b, other) in combinations(boxes.items(), 2) if one.overlaps(other)]
    assert not [a for a, one in boxes.items() if one.x0 < 0 or one.y0 < 0 or one.x1 > figure.bbox.x1]
    assert not [a for a, one in boxes.items() if one.y1 > figure.bbox.y1]


@pytest.mark.parametrize("name", iterations.DRAWN)
def test_each_name_in_a_box_fits_it(name) -> None:
    axes = iterations.picture(name).figure.axes[0]
    boxes = [patch.get_window_extent() for patch in axes.patches]
    for text in axes.texts:
        label = text.get_window_extent()
        # The smallest box that its middle lies in.
        around = [box for box in boxes if box.contains((label.x0 + label.x1) / 2, (label.y0 + label.y1) / 2)]
        if around:
            box = min(around, key=lambda box: box.width * box.height)
            assert box.x0 <= label.x0 and label.x1 <= box.x1, text.get_text()


def test_neighbouring_blocks_differ_in_grey() -> None:
    def grey(colour: str) -> float:
        red, green, blue = (int(colour[n : n + 2], 16) for n in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    shades = [grey(shade) for shade in iterations.SHADES]
    ink = grey(iterations.INK)
    assert all(abs(one - other) > 15 for one, other in zip(shades, [*shades[1:], shades[0]]))
    assert all(shade - ink > 100 for shade in shades), "black letters are read on each"


def test_a_product_of_the_seed_is_waited_for_at_once_and_those_of_best_overlap() -> None:
    of_seed, of_best = (Iterations(program(name)) for name in ("seed", "best"))
    assert all(product.end == product.start + 1 for product in of_seed.in_flight)
    mma0, mma1 = (product for product in of_best.in_flight if 0 <= product.start < len(of_best.rows) // 2)
    assert (mma0.product, mma0.block, mma1.product, mma1.block) == ("mma0", 0, "mma1", -1)
    assert mma0.start < mma1.start < mma0.end < mma1.end
    exponentials = rows(of_best).index("run mask 0")
    assert mma0.end < exponentials < mma1.end, "half of the softmax runs beside MMA1 alone"


@pytest.mark.parametrize("name", ["seed", "best", "ws_seed", "fa3_overlap", "prefetch", "three_stages"])
def test_what_is_shown_is_the_program(name) -> None:
    shown = Iterations(program(name))
    steady = shown.program.phases.steady.operations
    said = [op for row in shown.rows for op in row.operations]
    assert said == [*steady, *(op._replace(lag=op.lag - 1) for op in steady)]
    for one in shown.filled:
        assert one.start < one.ready < one.end
    for load, buffers in shown.program.buffers.items():
        for slot in range(buffers):
            spans = sorted((one.start, one.end) for one in shown.filled if (one.load, one.slot) == (load, slot))
            assert spans and all(end <= start for (_, end), (start, _) in pairwise(spans)), "a buffer has one block"


def test_a_producer_fills_a_buffer_as_soon_as_it_is_free() -> None:
    shown = Iterations(program("best"))
    release = rows(shown).index("release load_k 0")
    refilled = next(one for one in shown.filled if (one.load, one.block) == ("load_k", 2))
    assert refilled == Filled(
        "load_k", 0, 2, release, rows(shown).index("wait load_k 1") + len(shown.rows) // 2, refilled.end
    )
    in_flight = next(one for one in shown.in_flight if (one.product, one.block) == ("mma1", 0))
    assert in_flight == InFlight("mma1", 0, rows(shown).index("issue mma1 0"), rows(shown).index("wait mma1 0"))
