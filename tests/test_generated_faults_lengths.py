"""Faults that only some lengths show, at the edges of what is rounded: each is refused."""

from __future__ import annotations

import pytest
from generated_faults import Fault, fault, refused

FAULTS: dict[str, Fault] = {
    "no row tile where there is one query": fault(
        "one_tile", r"(int rmod_1 = \(tile % \(\(seq_q \+ )255(\) >> 8\)\);)", r"\g<1>254\2", words="by zero"
    ),
    "the last load of V of a tile that the mask ends early": fault(
        "fa3_pipelined",
        r"(\+ )255(\) - seq_q\)\) / 128\), 2\) \+ kv_1\) < 3\)\) \{\n *#pragma unroll\n.*\n.*V_shared)",
        r"\g<1>510\2",
        words="KV block 1 of rows from 0 on is not masked",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_refused(name: str) -> None:
    refused(FAULTS[name])
