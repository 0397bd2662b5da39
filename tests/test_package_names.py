"""`import tl_attention` gives names, schedules by name or file, and keywords of other libraries."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tl_attention
from tl_attention import InputError, attention, load_schedule
from tl_attention.op.attention import Options

ROOT = Path(__file__).parents[1]


def test_what_is_imported_late_is_among_the_packages_names() -> None:
    assert {"attention", "load_schedule", "InputError", "__version__"} <= {*dir(tl_attention)}
    assert {*tl_attention.__all__} <= {*dir(tl_attention)}


def test_a_schedule_is_loaded_by_its_name_or_its_file() -> None:
    path = ROOT / "schedules/experiments/sections.yaml"
    assert load_schedule("experiments/sections") == load_schedule(path) == load_schedule(str(path))
    with pytest.raises(InputError, match=r"^no schedule is named 'bets': did you mean best\?"):
        load_schedule("bets")


@pytest.mark.parametrize(
    "name,words",
    [
        ("is_causal", "is_causal: did you mean causal?"),
        ("softmax_scale", "softmax_scale: did you mean scale?"),
        ("windowsize", "windowsize: did you mean window_size?"),
        ("return_softmax_lse", "return_softmax_lse: did you mean return_lse?"),
        ("attn_mask", "attn_mask: masks are causal and window_size"),
        ("dropout_p", "dropout_p: there is no dropout"),
        ("xyzzy", f"xyzzy, expected some of {', '.join(Options.__annotations__)}, return_lse"),
    ],
)
def test_a_keyword_that_there_is_not_is_told_with_the_one_that_may_be_meant(name, words) -> None:
    q = torch.zeros(1, 1, 8, 64, dtype=torch.float16)
    # As Python's own error for it, and as all bad input here.
    for kind in (TypeError, InputError, ValueError):
        with pytest.raises(kind) as error:
            attention(q, q, q, **{name: True})
        assert str(error.value).startswith(f"attention: no argument is named {words}")
        assert "\n" not in str(error.value)
