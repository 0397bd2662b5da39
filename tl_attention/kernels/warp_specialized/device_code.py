"""These CUDA device functions are those of warp-specialised kernels.

A thread of a warpgroup holds acc_s and acc_o as wgmma leaves them: register 4 g + 2 h + c is row lane / 4 + 8 h of its
warp's 16 rows, column 8 g + 2 (lane % 4) + c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tl_attention.kernels.shared.device_code import (
    STORE,
    STORE_LSE,
    STRIDED_STORE,
    DeviceCode,
    code_of_features,
    read_device_code,
)
from tl_attention.problem.features import features_of
from tl_attention.problem.variant import Variant
from tl_attention.schedule.loop.exp2 import COEFFICIENTS
from tl_attention.schedule.schedule import Schedule

HOLD = read_device_code(__file__, "hold")
GREW = read_device_code(__file__, "grew")
STORE_P = read_device_code(__file__, "store_p")
CLEAR = read_device_code(__file__, "clear")
READ_HEADS = read_device_code(__file__, "read_heads")
STORE_HEADS = read_device_code(__file__, "store_heads")
STORE_PART = read_device_code(__file__, "store_part")
MERGE_PARTS = read_device_code(__file__, "merge_parts")
TIME_OF_TILES = read_device_code(__file__, "time_of_tiles")
LIST_TILES = read_device_code(__file__, "list_tiles")
HAND_OVER = read_device_code(__file__, "hand_over")
PAGES = read_device_code(__file__, "pages")
MERGE_LISTED = read_device_code(__file__, "merge_listed")
EXP2_POLYNOMIAL = read_device_code(__file__, "exp2_polynomial")
NARROW = "The same of a tensor that has fewer columns than the tile: the last lanes of a row may have nothing to store."
STORE_COLUMNS = STORE.replaced(
    NARROW,
    # How two columns are packed stands once.
    (STORE.text[: STORE.text.index("template <int head_dim")], "\n"),
    ("tl_attention_store", "tl_attention_store_columns"),
    ("chunk < head_dim / 32", "chunk < (head_dim + 31) / 32"),
    ("row + 8 * half < rows", "row + 8 * half < rows && 32 * chunk + 8 * member < head_dim"),
    ("head_dim", "columns"),
)
STRIDED_STORE_COLUMNS = STORE_COLUMNS.replaced(
    NARROW, ("int rows)", "int rows, int64_t row_stride)"), ("columns / 8)", "row_stride / 8)")
)


# The same stores of rows of several heads in a tile: where a row is, and whether it is there, its head says too.
ROW = "row + 8 * half"
PLACE = "own.place(row_stride, head_stride)"
BY_HEAD = (
    (f"{ROW} < rows", "own.there(rows)"),
    ("half < 2; ++half) {", f"half < 2; ++half) {{\n    const tl_attention_heads<heads, box> own({ROW});"),
)
STORE_OF = STRIDED_STORE_COLUMNS.replaced(
    STORE_HEADS.about,
    ("template <int columns, bool bf16>", "template <bool bf16, int columns, int heads, int box>"),
    ("tl_attention_store_columns", "tl_attention_store_of"),
    ("int64_t row_stride)", "int64_t row_stride, int64_t head_stride)"),
    (f"({ROW}) * (row_stride / 8)", f"{PLACE} / 8"),
    *BY_HEAD,
)
STORE_PART_OF = STORE_PART.replaced(
    STORE_HEADS.about,
    ("template <int columns>", "template <int columns, int heads, int box>"),
    ("tl_attention_store_part", "tl_attention_store_part_of"),
    ("int rows)", "int rows, int64_t row_stride, int64_t head_stride)"),
    (f"({ROW}) * (columns / 2)", f"{PLACE} / 2"),
    *BY_HEAD,
)
STORE_LSE_OF = STORE_LSE.replaced(
    STORE_HEADS.about,
    ("__device__", "template <int heads, int box> __device__"),
    ("tl_attention_store_lse", "tl_attention_store_lse_of"),
    ("int thread)", "int thread, int head_stride)"),
    ("lane / 4;", "lane / 4;\n  const tl_attention_heads<heads, box> first(row), second(row + 8);"),
    ("row < rows) lse[row]", "first.there(rows)) lse[first.place(1, head_stride)]"),
    ("row + 8 < rows) lse[row + 8]", "second.there(rows)) lse[second.place(1, head_stride)]"),
)


def device_code(schedule: Schedule, variant: Variant) -> list[DeviceCode]:
    """Returns the device functions that stand before a kernel, in their order, though none may call some of them."""
    strided, of_heads, polynomial = variant.strided, variant.tile_heads > 1, schedule.softmax.exp2_polynomial
    per_head = of_heads and any(feature.per_head for feature in features_of(variant.acting))
    exp2 = [] if polynomial is None else [exp2_polynomial(COEFFICIENTS[polynomial.degree])]
    found: tuple[tuple[Any, Sequence[DeviceCode]], ...] = (
        (True, (HOLD, STRIDED_STORE if strided else STORE, GREW)),
        (of_heads, (STORE_HEADS, STORE_OF, STORE_PART_OF, STORE_LSE_OF)),
        (per_head, (READ_HEADS,)),
        (variant.idle_rows, (CLEAR,)),
        (variant.head_dim_v < variant.tile_dim_v, (STRIDED_STORE_COLUMNS if strided else STORE_COLUMNS,)),
        (variant.parts, (STORE_PART, MERGE_PARTS)),
        (variant.packed, (TIME_OF_TILES, LIST_TILES, HAND_OVER)),
        (variant.key_box, (PAGES,)),
        (variant.packed and variant.parts, (MERGE_LISTED,)),
        (True, exp2),
        (schedule.kernel.p_operand == "shared", (STORE_P,)),
        (True, code_of_features(variant)),
    )
    return [code for is_there, codes in found if is_there for code in codes]


def exp2_polynomial(coefficients: Sequence[float]) -> DeviceCode:
    """Returns the function tl_attention_exp2 with a polynomial of these coefficients, the constant first."""
    horner = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        horner = f"fmaf({horner}, fraction, {coefficient!r}f)"
    return EXP2_POLYNOMIAL.replaced(EXP2_POLYNOMIAL.about, ("POLYNOMIAL", horner))
