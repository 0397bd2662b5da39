"""Problems of packed sequences: how they are written, recorded, measured and proved in lists of tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tl_attention.errors import InputError
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.measure import traffic
from tl_attention.lab.measure.candidate import Candidate, small_packed
from tl_attention.lab.measure.cell import DENSE, entries, load_cells
from tl_attention.lab.measure.records import problem_of, shape_of
from tl_attention.lab.model.machine import load
from tl_attention.lab.model.prediction import predict
from tl_attention.lab.oracle.reference import attention_and_lse, each_sequence, make_inputs
from tl_attention.problem.lengths import Lengths, lengths_text, parse_lengths
from tl_attention.problem.packed import PackedSizes, tile_list, words_of_list
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.tiling import visited_over_visible
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.shipped import folder

TEXT = "8x4096+100/300+2x0/5,40/8,192/128"


def test_a_text_names_a_problem_and_a_problem_is_written_as_its_text() -> None:
    shape = AttentionShape.parse(TEXT, dtype="bf16", causal=True, lse=True)
    assert str(shape) == "(8x4096+100/300+2x0/5, 40/8, 192/128) bfloat16 causal, LSE"
    assert (shape.totals, shape.group, shape.packed) == ((8 * 4096 + 100, 8 * 4096 + 310), 5, True)
    assert shape.flops == 2 * 40 * (8 * 4096 * 4097 // 2 + sum(range(201, 301))) * 320
    assert shape_of(problem_of(shape)) == shape and problem_of(shape)["lengths"] == "8x4096+100/300+2x0/5"


@pytest.mark.parametrize("text", ["3", "3/4", "2x3+5", "1x7", "0/9+4x1/0", "2x3+5@16"])
def test_lengths_are_read_as_they_are_written(text) -> None:
    found = parse_lengths(text)
    assert parse_lengths(lengths_text(*found)) == found


def test_a_problem_says_how_many_keys_a_page_has() -> None:
    shape = AttentionShape.parse("8x1/4096@64,40/8,128", causal=True)
    assert str(shape) == "(8x1/4096@64, 40/8, 128) float16 causal" and shape_of(problem_of(shape)) == shape
    assert problem_of(shape)["lengths"] == "8x1/4096@64" and shape.sequence(0).page_size == 0
    for text in ("8x4096@0,8,128", "8x4096@,8,128", "8x4096@64@64,8,128", "8x4096@x,8,128"):
        with pytest.raises(InputError, match="is not a shape, expected"):
            AttentionShape.parse(text)
    with pytest.raises(InputError, match="pages have 25 keys at head_dim 96, expected an even number of at least 2"):
        AttentionShape.parse("8x4096@25,8,96")
    with pytest.raises(InputError, match="pages have 64 keys at head_dim 128, expected 0: they are not packed"):
        replace(shape, packed=False)


def test_bytes_and_pairs_are_those_of_all_sequences() -> None:
    shape = AttentionShape.parse("500+3/70+0/9,4/2,64", causal=True)
    alone = [shape.sequence(n) for n in range(3)]
    assert traffic.input_bytes(shape) == sum(map(traffic.input_bytes, alone))
    assert traffic.output_bytes(shape) == sum(map(traffic.output_bytes, alone))
    one = AttentionShape.parse("1x500,4/2,64", causal=True)
    assert visited_over_visible(one, 128, 64) == visited_over_visible(one.sequence(0), 128, 64)


def test_inputs_lie_one_behind_the_other() -> None:
    shape = AttentionShape.parse("5+0/3+2/9,4/2,64,".rstrip(","))
    q, k, v = make_inputs(shape, 3)
    assert (tuple(q.shape), tuple(k.shape)) == ((7, 4, 64), (17, 2, 64))
    parts = [*each_sequence(shape, q, k, v)]
    assert [x[0].shape[2] for x in parts] == [5, 0, 2] and [x[1].shape[2] for x in parts] == [5, 3, 9]
    output, _ = attention_and_lse(*parts[2], mask=shape.mask, scale=0.1, precise=True)
    assert tuple(output.shape) == (1, 4, 2, 64)


def test_small_problems_have_all_that_is_unusual() -> None:
    shape = AttentionShape.parse(TEXT, dtype="bf16", causal=True)
    small = [*small_packed(shape, Planned(resolve("best_causal").schedule))]
    assert all(one.packed and one.variant() == shape.variant() for one in small)
    assert {words for one in small for words in one.unusual} == {
        "sequences of different lengths", "a sequence of length 0", "rows without a key"
    }  # fmt: skip


def test_nothing_is_predicted_of_packed_sequences() -> None:
    candidate = Candidate("best", AttentionShape.parse(TEXT), Planned(resolve("best").schedule), sms=132, arch="sm_90a")
    with pytest.raises(InputError, match="packed sequences, expected a batch of one length"):
        predict(candidate, load())


def test_the_cells_that_ship_are_of_packed_sequences() -> None:
    cells = load_cells(folder("results") / "packed.yaml")
    assert all(cell.shape.packed for cell in cells)
    assert {cell.shape.totals[0] for cell in cells if "context" not in cell.group} == {32768}
    # The dense kernel has the same tensors, seen as a batch.
    dense = [entry.candidate for cell in cells for entry in entries(cell) if entry.name == DENSE]
    assert len(dense) == 18 and all(one.strided and not one.shape.packed for one in dense)
    assert all(
        lowering_of(resolve(name).schedule).computes_packed(resolve(name).schedule) for name in ("ragged", "short")
    )


def test_the_list_has_each_tile_once() -> None:
    sizes = PackedSizes.of(3, [Lengths(300, 5), Lengths(0, 9), Lengths(128, 7), Lengths(1, 0)], 64)
    found = tile_list(sizes.spans, 128, 64)
    assert found[:, 0].tolist() == [0, 2, 4, 0, 0]
    assert np.array_equal(found[:, 1:], [sizes.spans[n] for n in (0, 0, 0, 2, 3)])
    assert len(found) <= sizes.seq_q // 128 + len(sizes.spans)
    assert words_of_list(sizes.seq_q, 4, 128) == 8 * (2 * (sizes.seq_q // 128 + 4) + 1) + 4 * 4
