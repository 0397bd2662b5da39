"""Kernels can count sizes up to bounds: larger sizes are refused, and no sum of accepted sizes leaves 32 bits."""

import random
from types import SimpleNamespace

import pytest

from tl_attention import InputError
from tl_attention.problem.bounds import LARGEST
from tl_attention.problem.features import BY_WORD, SCALES, scale_of
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape


@pytest.mark.parametrize(
    "text", [f"1,128,{2**20},128", "65535,16383/1,1,64", f"1,1,1,{2**31 - 2**17},64", f"2,64,{2**17 + 4096},300,128"]
)
def test_large_problems_within_them_are_none_the_less_problems(text) -> None:
    AttentionShape.parse(text)


class Narrow(int):
    """A narrow integer has 32 bits: a result that needs more is an error."""


def _narrow(name: str):
    def compute(self: int, *others: int) -> int:
        found = getattr(int, name)(self, *others)
        if isinstance(found, bool) or found is NotImplemented:
            return found
        assert -LARGEST - 1 <= found <= LARGEST, f"{self} {name} {others}"
        return Narrow(found)

    return compute


for _name in ("add", "sub", "mul", "floordiv"):
    setattr(Narrow, f"__{_name}__", _narrow(f"__{_name}__"))
    setattr(Narrow, f"__r{_name}__", _narrow(f"__r{_name}__"))
# As TileLang rounds up.
NARROW = SimpleNamespace(min=min, max=max, ceildiv=lambda a, b: (a + b - 1) // b, Or=lambda a, b: a or b)


def problems(count: int):
    """Yields problems at the bounds: each drawn size is small, or near a bound."""
    rng = random.Random(3)
    while count:
        seq_q, seq_kv, heads, batch, left, right = (
            min(int(2 ** rng.uniform(0, bits)), 2**31 - 2**16) for bits in (31, 31, 16, 16, 31, 31)
        )
        seq_kv = rng.choice((seq_kv, 2**31 - 2**16 - 1 - seq_q))
        mask = rng.choice((FULL, CAUSAL, Mask(left=left), Mask(left=left, right=right), Mask(right=right)))
        try:
            yield AttentionShape(batch, heads, max(seq_q, 1), seq_kv, 64, mask=mask, heads_kv=1)
        except InputError:
            continue
        count -= 1


def test_no_sum_of_an_accepted_problem_leaves_32_bits() -> None:
    """Sums of kernels are tried with the largest tiles, two in a cluster, and with the smallest."""
    for shape in problems(300):
        mask = shape.mask
        batch, heads, seq_q, seq_kv = map(Narrow, shape.sizes)
        past_len = seq_kv - seq_q
        for rows, block_N in ((64, 16), (512, 256)):
            tiles = NARROW.ceildiv(seq_q, rows)
            assert tiles * heads * batch + 4096 <= LARGEST and heads * seq_q <= LARGEST
            for first_row in (Narrow(0), (tiles - 1) * rows):
                blocks = NARROW.ceildiv(seq_kv, block_N)
                end = mask.end_block(blocks, first_row + rows + past_len, block_N, NARROW)
                first = mask.first_block(first_row + past_len, block_N, NARROW)
                mask.end_whole(seq_kv // block_N, first_row + past_len, block_N, NARROW)
                mask.first_whole(first_row + rows + past_len, block_N, NARROW)
                for block in (first, max(end, first + 9) - 1):
                    mask.hidden(Narrow(0), first_row + rows + past_len, seq_kv, NARROW, first=block * block_N)
                    mask.hidden((block + 1) * block_N, first_row + past_len, seq_kv, NARROW)


def test_a_scale_is_a_normal_number_with_its_product_and_its_quotient() -> None:
    for scale in (*SCALES, 1, 0.088):
        assert scale_of(scale) == scale
        BY_WORD["softcap"].check_with_scale(1.0, scale)
    for scale, softcap in ((SCALES[0], 2.0), (SCALES[1], 0.5)):
        with pytest.raises(InputError, match="scale / softcap is .*, expected 2.-126 to 2.35e"):
            BY_WORD["softcap"].check_with_scale(softcap, scale)
