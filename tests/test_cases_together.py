"""The cases of attention() together: what each adds to a kernel is proved beside what the others add."""

from __future__ import annotations

import pytest
from once import Given, proved

from tl_attention.build.compile import OPTIONAL
from tl_attention.files.named import resolve
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.variant import Variant

TOGETHER = {
    "best": Variant(128, "bfloat16", Mask(300, 40), optional=OPTIONAL, group=4, strided=True),
    "best_causal": Variant(104, "float16", CAUSAL, optional=OPTIONAL, group=5, strided=True),
    "seed": Variant(104, "bfloat16", Mask(300, 0), optional=OPTIONAL, group=4, strided=True),
    "d192_128_causal": Variant(192, "float16", Mask(1023, 0), 128, optional=OPTIONAL, group=8, strided=True),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_they_are_proved_together(name: str) -> None:
    assert proved(Given(resolve(name).schedule, TOGETHER[name])).digest
