"""The list of the matrix test has what it must have, and each of its cases is of the kernel that it stands with."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations, product, starmap
from typing import Any

import pytest
import torch
from covering import Pair, covering, pairs_of
from matrix_cases import CAPS, CASE_AXES, FA3_LENGTHS, LENGTHS, NO_CAP, Case, cases, pairs_shown
from matrix_check import faults, places
from matrix_kernels import AXES, EDGES, FA3_HEADS, FA3_SIZES, HEADS, MASKS, kernels
from on_cpu import Kernels, on_cpu

from tl_attention import InputError, attention
from tl_attention.op import arguments
from tl_attention.op.in_memory import other_way
from tl_attention.problem.head_dims import sizes_of
from tl_attention.problem.mask import OPEN
from tl_attention.problem.shape import DTYPES

__all__ = ["on_cpu"]
# At 20 s of a core each, on 15 cores, seven and a half minutes.
MOST_KERNELS = 340
LEAST_CASES = 3000


def test_there_are_enough_cases_of_few_enough_kernels() -> None:
    every = [case for of_kernel in cases().values() for case in of_kernel]
    assert len(every) == len(set(every))
    assert sum(case.launches and not case.is_refused for case in every) >= 2 * LEAST_CASES
    assert any(case.is_refused for case in every) and any(not case.launches for case in every)
    assert min(map(len, cases().values())) >= 10
    compiled = {(kernel.scheduled, kernel.variant) for kernel in kernels()}
    assert len(compiled) == len(kernels()) == len(set(map(str, kernels()))) <= MOST_KERNELS


def test_the_list_is_a_pure_function() -> None:
    before = cases(), random.getstate()
    kernels.cache_clear(), cases.cache_clear()
    assert (cases(), random.getstate()) == before


@cache
def shown() -> set[Pair]:
    return set().union(*(pairs_shown(kernel, case) for kernel, of_kernel in cases().items() for case in of_kernel))


def test_every_value_of_each_axis_occurs() -> None:
    occurring = {value for pair in shown() for value in pair}
    axes = AXES | CASE_AXES
    assert {(name, value) for name in axes for value in axes[name] if value is not None} == occurring & {
        (name, value) for name in axes for value in axes[name]
    }


def cannot_be(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Says whether no case has both values, independently: by the arguments of attention(), not by kernels."""
    values = dict((one, other))

    # A length of 0 tries only what it is paired with.
    lengths = LENGTHS if 0 in (values.get("seq_q"), values.get("seq_kv")) else LENGTHS[1:]
    axes = AXES | {"seq_q": lengths, "seq_kv": lengths} | {name: (value,) for name, value in values.items()}

    if values.keys() == {"cap", "capped"}:
        return (values["cap"] in NO_CAP) == values["capped"]
    if values.keys() & {"strided"} and not values["strided"]:
        # The tensors of a kernel without strides are contiguous.
        return not {values.get("layout", "bhsd"), values.get("memory", "contiguous"), values.get("out", "none")} <= {
            "bhsd",
            "contiguous",
            "none",
        }
    if values.keys() & {"seq_q", "seq_kv", "width", "edge", "few", "mask"} != values.keys():
        return False
    return not any(
        starmap(is_case, product(*(axes[name] for name in ("mask", "width", "edge", "few", "seq_q", "seq_kv"))))
    )


def is_case(mask: str, width: Any, edge: Any, few: bool, seq_q: int, seq_kv: int) -> bool:
    """Says whether a window of this kind hides something on each of its sides at these lengths; 0 goes with any window."""
    _, left, right = MASKS[mask]
    if (width is None) != (edge is None) or (width is None) == (left or right):
        return False
    if few and seq_q > 64:
        return False
    if 0 in (seq_q, seq_kv):
        return True
    # The narrowest of the schedules' blocks has 64 keys.
    size = (64 if width == "block" else width or 0) + (edge or 0)
    after = size // 2 if left else size
    return not (left and size >= seq_kv - 1) and not (right and after >= min(seq_q, seq_kv + after) - 1)


def test_every_pair_of_values_that_can_be_occurs() -> None:
    axes = {
        name: tuple(dict.fromkeys(v for v in values if v is not None)) for name, values in (AXES | CASE_AXES).items()
    }
    pairs = {
        pair
        for a, b in combinations(sorted(axes), 2)
        for pair in product(((a, x) for x in axes[a]), ((b, y) for y in axes[b]))
    }
    missing = {pair for pair in pairs - shown() if not cannot_be(*pair)}
    assert not missing, sorted(map(str, missing))


def test_flash_attention_3s_span_is_within_it() -> None:
    there = {
        (c.dtype, c.head_dim, c.heads // c.heads_kv, c.cap in CAPS, c.causal, c.window != (-1, -1), c.seq_q, c.seq_kv)
        for of_kernel in cases().values()
        for c in of_kernel
        if c.head_dim == c.head_dim_v and not c.sinks
    }
    groups = [HEADS[name][0] // HEADS[name][1] for name in FA3_HEADS]
    off_and_on = (False, True)
    assert groups == [1, 3, 6] and FA3_SIZES == (64, 96, 128, 192, 256) and len(FA3_LENGTHS) == 21
    for problem in product(DTYPES, FA3_SIZES, groups, off_and_on, off_and_on, off_and_on):
        for lengths in FA3_LENGTHS:
            assert (*problem, *lengths) in there


def test_windows_have_edges_at_and_beside_blocks_and_lengths() -> None:
    lefts = {kernel.window[0] for kernel in kernels() if kernel.window[0] != OPEN}
    for edge in (64, 128, 799):
        assert {edge + beside for beside in EDGES} <= lefts and edge in LENGTHS
    # Of the schedule that runs it: blocks of several widths.
    beside_block = {
        (kernel.window[0] - kernel.scheduled.block_N, kernel.scheduled.block_N)
        for kernel in kernels()
        if kernel.width == "block" and kernel.window[0] != OPEN
    }
    assert {edge for edge, _ in beside_block} == set(EDGES)
    assert len({block_N for _, block_N in beside_block}) >= 4


def call_on_meta(case: Case, schedule: Any) -> None:
    """Calls attention() on tensors that have no memory."""
    like = torch.empty(0, dtype=getattr(torch, case.dtype), device="meta")
    read, out = places(case, like)
    sinks = torch.empty(case.heads, device="meta") if case.sinks else None
    attention(
        *(other_way(place.tensor, case.layout) for place in read),
        causal=case.causal,
        window_size=case.window,
        softcap=case.cap[0],
        sinks=sinks,
        layout=case.layout,
        return_lse=case.lse,
        out=other_way(out.tensor, case.layout) if out else None,
        schedule=schedule,
    )


def test_each_case_asks_for_the_kernel_that_it_stands_with(on_cpu: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cpu, "compute", lambda tensors, variant: None)
    # All tensors without memory lie at one address.
    monkeypatch.setattr(arguments, "check_out", lambda *of_out: None)
    for kernel, of_kernel in cases().items():
        on_cpu.asked.clear()
        for case in of_kernel:
            if case.is_refused:
                with pytest.raises(InputError, match="strides"):
                    call_on_meta(case, kernel.scheduled)
            else:
                call_on_meta(case, kernel.scheduled)
        assert on_cpu.asked == {(kernel.scheduled, kernel.variant)}, str(kernel)


def test_small_cases_of_some_kernels_are_right_with_the_reference_in_their_place(on_cpu: Kernels) -> None:
    for kernel, of_kernel in [*cases().items()][::11]:
        small = sorted(of_kernel, key=lambda case: case.batch * case.heads * (case.seq_q + 1) * (case.seq_kv + 1))
        first = next(case for case in small if case.launches and not case.is_refused)
        for case in {small[0]: None, first: None}:
            assert list(faults(case, 5, "cpu")) == [], f"{kernel} {case}"


def test_a_covering_design_has_every_pair_that_is_legal() -> None:
    axes = {"a": (0, 1, 2), "b": (0, 1, 2), "c": (False, True), "d": ("x", None)}

    def is_legal(row):
        return row["a"] <= row["b"]

    rows = covering(axes, is_legal, [], random.Random(1))
    assert all(map(is_legal, rows)) and len(rows) < 18
    shown = set().union(*map(pairs_of, rows))
    for a, b in product(range(3), range(3)):
        assert ((("a", a), ("b", b)) in shown) == (a <= b)
    assert {(("a", a), ("c", c)) for a in range(3) for c in (False, True)} <= shown
    assert {(("c", c), ("d", "x")) for c in (False, True)} <= shown
    known = pairs_of({"a": 0, "b": 0, "c": False, "d": "x"})
    assert len(covering(axes, is_legal, known, random.Random(1))) <= len(rows)
    assert {sizes_of(size) for size in AXES["size"]} >= {(192, 128), (256, 256), (8, 8), (248, 248)}
