"""`attention(..., window_size)` on a Hopper GPU is compared with fp64. Without a GPU: test_cases_windows.py."""

from __future__ import annotations

import pytest
import torch
from mutations import SCHEDULES
from on_gpu import check, fresh

from tl_attention import attention

pytestmark = pytest.mark.gpu
# The matrix test has none that is smaller than a block.
SMALL = [
    ("best", (0, 0)),
    ("best", (5, 3)),
    ("best_causal", (1, 0)),
    ("best_causal", (0, 1)),
    ("seed", (0, 0)),
    ("seed", (0, 1)),
    ("inferred", (5, 3)),
    ("ws_three_stages", (1, 0)),
    ("prefetch", (33, 44)),
]


def check_call(schedule: str, sizes: tuple[int, ...], window: tuple[int, int], causal: bool = False, **options) -> None:
    """The output is inside the error budget, on fresh inputs; sizes are batch, heads, seq_q, seq_kv."""
    q, k, v = fresh(*sizes, 128, dtype=options.pop("dtype", "float16"))
    file = SCHEDULES / f"{schedule}.yaml" if schedule else None
    output = attention(q, k, v, causal=causal, window_size=window, schedule=file, **options)
    check(output, q, k, v, causal=causal, window=window)


@pytest.mark.parametrize("schedule,window", SMALL)
def test_windows_smaller_than_a_block(schedule, window):
    for sizes in ((2, 3, 300, 777), (1, 2, 129, 129), (2, 2, 65, 1000)):
        check_call(schedule, sizes, window)


def test_what_a_window_larger_than_all_keys_computes_is_what_none_does():
    q, k, v = fresh(1, 3, 300, 500, 128)
    assert torch.equal(attention(q, k, v, window_size=(500, 300)), attention(q, k, v))
    assert torch.equal(attention(q, k, v, causal=True, window_size=(10_000, 0)), attention(q, k, v, causal=True))


def test_fixed_sizes_and_long_sequences():
    check_call("best", (1, 3, 700, 1500), (300, 200), specialize=True)
    check_call("seed", (1, 3, 700, 1500), (300, 200), specialize=True)
    check_call("", (1, 2, 16384, 16384), (1024, 1024), dtype="bfloat16")
    check_call("", (1, 2, 16384, 16384), (1023, 0), causal=True, dtype="bfloat16")


@pytest.mark.parametrize("schedule", ["best", "experiments/causal/rescale_threshold", "seed"])
def test_scores_far_apart_where_rows_see_their_first_key_late(schedule):
    """Blocks come from the last to the first: a row may have seen no key yet, or only small ones."""
    for seq_q, seq_kv in ((600, 1000), (129, 640)):
        q, k, v = fresh(1, 2, seq_q, seq_kv, 128, spread=128.0)
        output = attention(q, k, v, window_size=(40, 0), schedule=SCHEDULES / f"{schedule}.yaml")
        check(output, q, k, v, window=(40, 0))
