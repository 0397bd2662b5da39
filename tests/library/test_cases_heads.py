"""Grouped heads are compiled, proved, compared with a reference and recorded. Their faults: proof/faults/heads.py."""

import pytest
import torch
from code_mutants.reading import prove
from golden_kernels import KERNELS
from mutations import shipped
from on_cpu import Kernels, on_cpu
from once import lowered
from stand_in import launched_on

from tl_attention import attention
from tl_attention.codeproof.pipelined.code_proof import PipelinedProof
from tl_attention.codeproof.verdict import GeneratedCode
from tl_attention.compiler.store import kernel_key
from tl_attention.errors import InputError
from tl_attention.lab.measure.candidate import MANY, verified_on
from tl_attention.lab.measure.records import Row, parse_line, problem_of
from tl_attention.lab.oracle.interpret import POLICIES, interpret
from tl_attention.lab.oracle.reference import attention_fp64, attention_same_precision, compare, make_inputs
from tl_attention.lab.oracle.tile import Settings
from tl_attention.op.rows import Rows
from tl_attention.problem import variant
from tl_attention.problem.mask import CAUSAL, FULL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.derivation import derive
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.schedule import Schedule

__all__ = ["launched_on", "on_cpu"]


def test_no_problem_of_a_proof_cuts_a_group():
    for group in (1, 2, 3, 5, 8, 40):
        of = Variant(128, "float16", group=group, tile_heads=min(group, 2))
        seed = shipped()["seed"]
        proof = PipelinedProof(seed, derive(seed), GeneratedCode("", "", of, of.parameters()))
        assert all(sizes.heads % group == 0 for sizes in proof.sizes())


def test_the_text_of_a_shape_says_which_heads_are_shared():
    shape = AttentionShape.parse("4,40/8,1000,128", dtype="bf16")
    assert shape == AttentionShape(4, 40, 1000, 1000, 128, "bfloat16", heads_kv=8)
    assert (shape.heads, shape.heads_kv, shape.group, str(shape)) == (40, 8, 5, "(4, 40/8, 1000, 128) bfloat16")
    assert AttentionShape.parse("1,8/1,3,5,64").heads_kv == 1
    assert AttentionShape.parse("1,8/8,3,5,64") == AttentionShape.parse("1,8,3,5,64")
    assert str(AttentionShape.parse("1,8/8,3,5,64")) == "(1, 8, 3/5, 64) float16"
    assert shape.variant() == Variant(128, "bfloat16") == AttentionShape.parse("4,40,1000,128", dtype="bf16").variant()
    grouped = shape.variant(tile_heads=2)
    assert grouped == Variant(128, "bfloat16", group=5, tile_heads=2) != shape.variant()
    assert AttentionShape.of(shape.variant(fixed=True), shape.sizes) == shape


@pytest.mark.parametrize(
    "text", ["4,40/,9,64", "4,/8,9,64", "4,40/8/2,9,64", "4,40/0,9,64", "4,40/x,9,64", "4/2,40,9,64", "40/8", "4,40/8"]
)
def test_heads_that_are_none_are_no_shape(text):
    with pytest.raises(InputError, match="is not a shape, expected"):
        AttentionShape.parse(text)


RATIOS = ((6, 6), (6, 2), (6, 1), (40, 8))


def answers(on_cpu: Kernels, rows: int, schedule: str) -> set[tuple[Schedule, Variant]]:
    """Returns the kernels of calls with other ratios of heads, whose results are those of attention in fp64."""
    for heads, heads_kv in RATIOS:
        q, k, v = (torch.randn(2, *of, 64).half() for of in ((heads, rows), (heads_kv, rows), (heads_kv, rows)))
        exact = attention_fp64(q, k, v, mask=CAUSAL, scale=0.125)
        assert (attention(q, k, v, causal=True, schedule=schedule) - exact).abs().max() < 2e-3
    return {*on_cpu.asked}


def test_one_kernel_serves_every_ratio(on_cpu: Kernels) -> None:
    """It is compiled once, and a kernel whose tiles have rows of several heads once for each ratio."""
    for schedule, rows in (("d64_causal", 300), ("short_d64", 300), ("seed", 41), ("mma_sync_d64", 41)):
        on_cpu.asked.clear()
        [(_, of)] = answers(on_cpu, rows, schedule)
        assert (of.group, of.tile_heads) == (None, 1)
    on_cpu.asked.clear()
    assert {(of.group, of.tile_heads) for _, of in answers(on_cpu, 5, "short_d64")} == {
        (None, 1),
        (3, 3),
        (6, 6),
        (5, 5),
    }


def test_the_launch_says_the_ratio(launched_on) -> None:
    for heads, heads_kv in RATIOS:
        q, k = (torch.zeros(1, of, 64, 64).half() for of in (heads, heads_kv))
        attention(q, k, k, schedule="d64")
    assert [given["group"] for _, given in launched_on] == [1, 3, 6, 5]
    assert len({kernel_key(resolve("d64").schedule, of) for of, _ in launched_on}) == 1


@pytest.mark.parametrize("ratio", [1, 2, 8])
@pytest.mark.parametrize("name", ["sections", "seed", "mma_sync_small", "best_causal, packed parts"])
def test_a_kernel_is_proved_with_numbers_for_any_ratio(name, ratio, monkeypatch) -> None:
    """The proof shows it for all ratios at once; it runs tiles of problems with this one, too."""
    monkeypatch.setattr(variant, "SOME_GROUP", ratio)
    assert prove(KERNELS[name].schedule, lowered(KERNELS[name])).digest


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(InputError, match="shape: 40 heads, expected a multiple of K's and V's 7"):
        AttentionShape.parse("4,40/7,9,64")
    with pytest.raises(InputError, match="heads_kv is -8, expected an integer of at least 1"):
        AttentionShape.parse("4,40/-8,9,64")


def test_rows_that_see_no_key():
    for mask in (FULL, CAUSAL, Mask(right=3), Mask(left=2, right=0), Mask(left=2)):
        for seq_q, seq_kv in ((1, 1), (5, 3), (9, 1), (3, 9), (4, 0), (0, 4), (0, 0), (7, 3)):
            rows = Rows.of(mask, seq_q, seq_kv)
            own = [i + seq_kv - seq_q for i in range(seq_q)]
            last = [seq_kv - 1 if mask.right is None else min(seq_kv - 1, place + mask.right) for place in own]
            first = [0 if mask.left is None else max(0, place - mask.left) for place in own]
            assert rows.hidden == sum(end < start for start, end in zip(first, last)), (mask, seq_q, seq_kv)
            assert rows.count == seq_q - rows.hidden
            x = torch.arange(seq_q).view(1, 1, seq_q)
            assert torch.equal(torch.cat((rows.without_keys(x), rows.computed(x)), dim=2), x)


def test_references_share_heads_as_repeated_keys_would():
    shape = AttentionShape(2, 6, 37, 50, 64, heads_kv=2)
    q, k, v = make_inputs(shape, seed=1)
    assert k.shape == v.shape == (2, 2, 50, 64) and q.shape == (2, 6, 37, 64)
    for mask in (FULL, CAUSAL):
        for reference in (attention_fp64, attention_same_precision):
            found, repeated, tiled = (
                reference(q, *keys, mask=mask, scale=0.125)
                for keys in (
                    (k, v),
                    (k.repeat_interleave(3, dim=1), v.repeat_interleave(3, dim=1)),
                    (k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)),
                )
            )
            assert torch.equal(found, repeated)
            assert not compare(tiled.half(), found.double(), found.half()).ok
    exact = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), scale=0.125, enable_gqa=True
    )
    assert torch.allclose(attention_fp64(q, k, v, mask=FULL, scale=0.125), exact)


@pytest.mark.parametrize("mask", [FULL, CAUSAL])
@pytest.mark.parametrize("name", ["seed", "ws_seed", "prefetch_late"])
@pytest.mark.parametrize("heads,heads_kv", [(6, 3), (5, 1)])
def test_the_interpreter_shares_heads(heads, heads_kv, name, mask):
    schedule = shipped()[name]
    q, k, v = make_inputs(AttentionShape(1, heads, 45, 83, 64, "bfloat16", mask, heads_kv=heads_kv), seed=heads)
    options = {"mask": mask, "scale": 0.125}
    exact, peer = attention_fp64(q, k, v, **options), attention_same_precision(q, k, v, **options)
    for policy in POLICIES.values():
        tiles = Settings(32, 16, schedule.kv_order)
        error = compare(interpret(derive(schedule), (q, k, v), tiles, policy=policy, **options), exact, peer)
        assert error.ok, str(error)


def test_what_a_kernel_is_verified_on_has_its_groups():
    for text in ("4,40/8,1000,128", "1,7/1,64,64,64", "2,6,64,64"):
        shape = AttentionShape.parse(text)
        for causal in (False, True):
            shape = AttentionShape.parse(text, causal=causal)
            problems = verified_on(shape, fixed=False)
            assert {problem.shape.group for problem in problems} == {shape.group}
            many = MANY // shape.group
            assert {1, 2, 3, 5, 110, many} == {problem.shape.heads_kv for problem in problems[:-1]}
            assert {1, 2, 3, 4, MANY} == {problem.shape.batch for problem in problems[:-1]}


def test_a_row_says_which_heads_are_shared():
    for text in ("4,40/8,1000,128", "2,6,64,64"):
        shape = AttentionShape.parse(text)
        problem = problem_of(shape)
        assert ("heads_kv" in problem) == (shape.group > 1)
        row = Row("best", "label", "runtime", problem, "ok")
        assert parse_line(Row, row.to_json().encode(), "a:1").shape == shape
