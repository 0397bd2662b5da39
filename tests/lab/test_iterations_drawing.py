"""Tests check the drawings of two iterations, and the facts that they show."""

from itertools import pairwise

import pytest
from picture_text import boxes, faults
from pictures import iterations
from pictures.steady_state import Iterations
from pictures.style import SMALL

from tl_attention.program.derivation import derive
from tl_attention.program.program import Program
from tl_attention.schedule.files.named import resolve


def program(name: str) -> Program:
    return derive(resolve(name).schedule)


@pytest.mark.parametrize("name", iterations.DRAWN)
def test_labels_lie_within_the_picture_and_apart(name) -> None:
    figure = iterations.picture(name).figure
    assert len(boxes(figure)) > 40 and faults(figure, SMALL) == []


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
