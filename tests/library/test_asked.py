"""A problem may ask for a softcap, sinks and the LSE besides its output, from the command line to the record."""

from dataclasses import replace

import pytest

from tl_attention.errors import InputError
from tl_attention.kernels.shared.device_code import ON_SCORES
from tl_attention.kernels.shared.features import IN_KERNEL
from tl_attention.lab.measure.candidate import verified_on
from tl_attention.lab.measure.peers import why_not
from tl_attention.lab.measure.records import problem_of, shape_of
from tl_attention.lab.oracle.features import IN_ORACLE
from tl_attention.lab.oracle.reference import make_asked
from tl_attention.problem.features import FEATURES, INPUTS, take_features
from tl_attention.problem.mask import CAUSAL, Mask
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Sizes

PLAIN = AttentionShape(2, 6, 64, 96, 128, "bfloat16", heads_kv=3)
ASKED = {"softcap": {"softcap": 30.0}, "Sinks": {"sinks": True}, "LSE": {"lse": True}}


@pytest.mark.parametrize("name", ASKED)
def test_each_is_a_parameter_of_the_kernel_and_stands_in_the_record(name) -> None:
    shape = PLAIN.asking(**ASKED[name])
    assert shape.variant() == replace(PLAIN.variant(), optional=frozenset({name}))
    assert name in [parameter.name for parameter in shape.variant().parameters()]
    assert problem_of(shape) == problem_of(PLAIN) | ASKED[name] and shape_of(problem_of(shape)) == shape
    assert str(shape).startswith(str(PLAIN)) and shape != PLAIN


def test_off_they_leave_problem_and_kernel_as_they_were() -> None:
    assert not PLAIN.variant().optional and str(PLAIN) == "(2, 6/3, 64/96, 128) bfloat16"
    assert not {"softcap", "sinks", "lse"} & problem_of(PLAIN).keys() and not make_asked(PLAIN, 0)
    asked = replace(PLAIN, mask=CAUSAL).asking(softcap=30.0, sinks=True, lse=True)
    assert str(asked) == "(2, 6/3, 64/96, 128) bfloat16 causal, softcap 30, sinks, LSE"
    assert make_asked(asked, 0)["sinks"].shape == (6,)


def test_they_stay_at_other_sizes_and_where_a_kernel_is_verified() -> None:
    shape = PLAIN.asking(softcap=30.0, lse=True)
    assert shape.resized(Sizes(1, 2, 5, 7)) == replace(shape, batch=1, heads=2, heads_kv=1, seq_q=5, seq_kv=7)
    assert {(v.shape.asked, v.shape.group) for v in verified_on(shape, False)} == {(shape.asked, 2)}


def test_each_feature_is_in_the_kernels_and_the_oracle_and_inputs_have_the_words_of_their_arguments() -> None:
    assert {*IN_KERNEL} == {feature.name for feature in FEATURES}
    assert {*IN_ORACLE} == {feature.word for feature in INPUTS}
    assert {*ON_SCORES} == {feature.name for feature in FEATURES if feature.acts == "all scores"}
    assert all(feature.word == feature.argument for feature in INPUTS)


@pytest.mark.parametrize("softcap", [-1.0, float("nan"), float("inf"), 1e-30])
def test_a_softcap_that_is_none_is_refused(softcap) -> None:
    with pytest.raises(InputError, match="shape: softcap is .*, expected 0, which is off"):
        PLAIN.asking(softcap=softcap)


@pytest.mark.parametrize(
    "peer, fields, words",
    [
        ("cudnn", {}, ""),
        ("cudnn", {"softcap": 3.0}, "it is not asked for softcap"),
        ("cudnn", {"mask": CAUSAL}, "at the top left"),
        ("flash2", {"sinks": True}, "sinks"),
        ("fa3", {"lse": True}, "the LSE"),
        ("fa3", {"mask": Mask(5, 5)}, "windows"),
        ("fa3", {"dtype": "float16"}, "without fp16"),
        ("fa3", {"head_dim": 40, "head_dim_v": 40}, "no head_dim 40"),
    ],
)
def test_a_peer_says_why_it_cannot(peer, fields, words) -> None:
    asked = take_features(fields)
    reason = why_not(peer, replace(PLAIN, **fields).asking(**asked))
    assert words in reason and bool(reason) == bool(words)
