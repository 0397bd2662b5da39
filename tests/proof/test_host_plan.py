"""The host's plan says how a kernel is launched; its JSON is the plan, or is refused."""

import golden
import pytest
from conftest import ROOT
from once import Given, lowered

from tl_attention.errors import InputError
from tl_attention.launch.plan import HostPlan, SizeExpression, from_json, to_json
from tl_attention.problem.variant import Variant
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule

INFERRED = Schedule(lowering="inferred", block_M=128, block_N=128, threads=256, num_stages=2)
SCHEDULES = {"seed": load(ROOT / "schedules" / "seed.yaml"), "inferred": INFERRED}
SIZES = {"batch": 2, "heads": 6, "heads_kv": 3, "seq_q": 200, "seq_kv": 300}


@pytest.fixture(scope="module")
def plans() -> dict[str, HostPlan]:
    return {name: lowered(Given(schedule, Variant(128, "float16"))).plan for name, schedule in SCHEDULES.items()}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_plan_is_the_launch(plans, name):
    plan = plans[name]
    assert plan.kernel == "attention_kernel"
    assert [extent.at(SIZES) for extent in plan.grid] == [2, 6, 2]
    assert plan.block == ({"seed": 256, "inferred": 384}[name], 1, 1)
    # Q once, K and V twice: 5 tiles of 128 x 128 in fp16.
    assert plan.shared_bytes == 5 * 128 * 128 * 2
    assert {size.name: (size.tensor, size.axis) for size in plan.sizes} == {
        "batch": ("Q", 0), "heads": ("Q", 1), "heads_kv": ("K", 1), "seq_q": ("Q", 2), "seq_kv": ("K", 2),
    }  # fmt: skip
    # Descriptors alone ask for the heads of K.
    own = {"group", *SIZES} - ({"heads_kv"} if name == "inferred" else set())
    assert {p.name for p in plan.parameters if p.kind == "int"} == own
    assert [p.name for p in plan.parameters if p.kind == "float"] == ["softmax_scale"]


@pytest.mark.parametrize(
    "name, tensors", [("seed", ("Output",)), ("inferred", ("K", "Output", "Q", "V"))], ids=["seed", "inferred"]
)
def test_the_descriptors_cover_their_tensors(plans, name, tensors):
    descriptors = {descriptor.tensor: descriptor for descriptor in plans[name].descriptors}
    assert tuple(sorted(descriptors)) == tensors
    for tensor, descriptor in descriptors.items():
        rows, heads = (300, 3) if tensor in "KV" else (200, 6)
        assert [extent.at(SIZES) for extent in descriptor.dims] == [128, rows, heads, 2]
        assert [extent.at(SIZES) for extent in descriptor.strides] == [256, rows * 256, heads * rows * 256]
        # 64 fp16 fill the 128 bytes of the swizzle (3); rows come 128 at a time.
        assert (descriptor.dtype, descriptor.box, descriptor.swizzle) == (6, (64, 128, 1, 1), 3)
        assert descriptor.name in {p.name for p in plans[name].parameters if p.kind == "pointer"}


def test_the_json_of_a_plan_is_the_plan():
    for _, text in golden.texts().values():
        assert to_json(from_json(text)) == text


@pytest.mark.parametrize(
    "old, new, message",
    [
        (
            "(seq_q + 127) // 128",
            "(seq_k + 127) // 128",
            "seq_k in .* expected one of batch, group, heads, heads_kv, seq_kv, seq_q",
        ),
        ("(seq_q + 127) // 128", "seq_q - 1", "Sub in the expression 'seq_q - 1'"),
        ("(seq_q + 127) // 128", "1 if seq_q else 2", "IfExp in the expression"),
        ("(seq_q + 127) // 128", "seq_q / 128", "Div in the expression"),
        ("(seq_q + 127) // 128", "seq_q + 0.5", "Constant in the expression"),
        ("(seq_q + 127) // 128", "(seq_q + 127", "the expression '"),
        ('"swizzle": 3', '"swizzle": "3"', "descriptors.0.swizzle: Input should be a valid integer"),
        ('"swizzle": 3', '"swizzle": 3.0', "descriptors.0.swizzle: Input should be a valid integer"),
        ('   "swizzle": 3,\n', "", "descriptors.0.swizzle: Field required"),
        ('"swizzle": 3', '"other": 1, "swizzle": 3', "its text is none of a plan's"),
        ('"kind": "float"', '"kind": "double"', "kind: Input should be 'pointer', "),
        ('"name": "Output_desc",\n   "tensor"', '"name": "Output",\n   "tensor"', "of which two have one name"),
        ("{", "[", "its text: Invalid JSON"),
    ],
)
def test_another_text_is_refused(plans, old, new, message):
    text = to_json(plans["seed"])
    assert old in text
    with pytest.raises(InputError, match=rf"host code: .*{message}.*: not as TileLang 0.1.15 makes it"):
        from_json(text.replace(old, new, 1))


def test_an_expression_is_never_negative():
    assert [SizeExpression("(seq_q + 191) // 192").at({"seq_q": rows}) for rows in (1, 192, 193)] == [1, 1, 2]
    with pytest.raises(InputError, match="the expression '1 - seq_q', which is -1"):
        SizeExpression("(1 - seq_q) * 0").at({"seq_q": 2})
