"""A feature is what a call may ask for beside its sizes, dtype and mask; FEATURES has one row for each.

All other code asks these rows. What a feature computes stands in three more places: in `kernels/shared/features.py` for
the kernels, in `oracle/features.py` for the numbers that kernels are held to, and in the docstring of `attention`,
which has an argument for each feature. This module also says what a kernel's parameter is, and which scales there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tl_attention.errors import InputError, shown

# The least normal number of fp32, and one near the largest that stays finite when a kernel multiplies it by log2 e.
SCALES = 2.0**-126, 2.35e38
# The word in the name of a dimension's stride.
STRIDE_WORDS: dict[str | int, str] = {
    "batch": "batch",
    "heads": "head",
    "heads_kv": "head",
    "seq_q": "row",
    "seq_kv": "row",
}
EXPECTED_SCALE = f"2^-126 to {SCALES[1]:g}"


# A launch runs these in order: one lists the tiles of packed sequences, the main one computes, and one merges the main
# one's results for parts of the keys.
Kernel = Literal["listing", "main", "merging"]
MAIN: Kernel = "main"


@dataclass(frozen=True)
class Parameter:
    """A Parameter describes one parameter of a kernel, a tensor or a number, by its name, kind and dimensions."""

    name: str
    # An input or an output is a tensor of the caller's, and a scalar is a number. Offsets say where packed sequences
    # lie. A counter is a tensor that a launch finds zero and leaves zero, so the caller need not see it.
    kind: str
    dims: tuple[str | int, ...] = ()  # names of a tensor's dimensions, outermost first, contiguous
    dtype: str = ""  # "" is the variant's
    optional: bool = False  # whether only some variants or schedules ask for the parameter
    kernels: tuple[Kernel, ...] = (MAIN,)  # the kernels of a launch that take the parameter

    @property
    def strides(self) -> tuple[str, ...]:
        """Returns the names of the parameter's strides in a strided variant, in elements, outermost first.

        Inputs and outputs with columns have strides. That of the last dimension is 1, and has no name.
        """
        if not self.has_columns or "results" in self.dims:
            return ()
        return tuple(f"{self.name}_{STRIDE_WORDS[dim]}_stride" for dim in self.dims[:-1])

    @property
    def has_columns(self) -> bool:
        """Returns True if this is an input or output whose rows have a column for each number of a head."""
        return self.kind in ("input", "output") and self.dims[-1] in ("head_dim", "head_dim_v")

    @property
    def for_parts(self) -> Parameter:
        """Returns the parameter as a kernel takes it that computes the keys in parts, with results of parts in fp32."""
        if self.kind != "output" or MAIN not in self.kernels:
            return self
        dims: tuple[str | int, ...] = ("results", *self.dims[1:])
        return replace(self, dims=dims, dtype="float32", optional=False, kernels=(MAIN, "merging"))

    @property
    def for_merging(self) -> Parameter:
        """Returns the parameter as one that only the kernel which merges parts takes."""
        return replace(self, kernels=("merging",))

    @property
    def for_packed(self) -> Parameter:
        """Returns the parameter as a kernel of packed sequences takes it, without a batch unless its rows are padded.

        A tensor with columns is (rows, heads, columns). Results of parts are rows of tiles. The main kernel takes the
        merged tensors too, because results of sequences that are not split go there.
        """
        dims = tuple(dim for dim in self.dims if dim != "batch" or "rows" in self.dims)
        if "results" in dims:
            dims = (dims[0], *dims[3:])
        elif self.has_columns:
            dims = (dims[1], dims[0], dims[2])
        kernels = (MAIN, *self.kernels) if self.kernels == ("merging",) else self.kernels
        return replace(self, dims=dims, kernels=kernels)


def in_range(scale: float) -> bool:
    """Returns True if the scale lies within SCALES, the range by which kernels may multiply scores."""
    return SCALES[0] <= scale <= SCALES[1]


def scale_of(scale: object) -> float:
    """Returns the scale of the scores as a float. Raises InputError for one that kernels cannot multiply by."""
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or not in_range(scale):
        raise InputError(f"scale is {shown(scale)}, expected a number from {EXPECTED_SCALE}")
    return float(scale)


# Where a feature acts:
# factor: it multiplies the factor of a head's scores, which is one with that of the exponentials;
# scores: it changes each score by itself, which was scaled by that factor;
# all scores: so too, by a device function that has a faster form for all scores of a thread;
# extra score: its value is one more score of each row, which has no key, and so counts once;
# result: it is one more result.
Acts = Literal["factor", "scores", "all scores", "extra score", "result"]
# What a problem has of a feature: the number, or whether it is there.
Value = float | bool


def _softcap(value: object) -> float:
    low, high = 1e-20, 1e20  # So that fp32 has the scale divided by it.
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not (value == 0 or low <= value <= high):
        raise InputError(f"softcap is {shown(value)}, expected 0, which is off, or {low:g} to {high:g}")
    return float(value)


def _softcap_with_scale(value: float, scale: float) -> None:
    if value and not in_range(scale / value):
        raise InputError(f"scale / softcap is {scale / value:g}, expected {EXPECTED_SCALE}")


# Each feature is one object, so features are compared by identity.
@dataclass(frozen=True, eq=False)
class Feature:
    """A Feature describes what a call may ask for, such as softcap, sinks or the LSE."""

    word: str  # its name in a problem, in records, cells and rules, and on the command line
    argument: str  # what `attention` takes for it
    acts: Acts  # where it acts; the properties say what follows
    parameter: Parameter  # what a kernel takes for it
    help: str  # describes the option
    words: str  # what a refusal calls the feature
    # Returns the number that a value means, or raises InputError.
    check: Callable[[object], float] = float  # type: ignore[assignment]
    # Raises InputError for a value that does not go with a scale.
    check_with_scale: Callable[[float, float], None] = lambda value, scale: None
    elsewhere: tuple[str, ...] = ()  # what other libraries call the argument
    transformers: str = ""  # what a layer of Transformers calls it
    peers: Mapping[str, str] = field(default_factory=dict)  # by peer that has the feature, the name of its argument
    has_gradient: bool = False  # whether a call with the feature may have a gradient
    has_slope: bool = False  # whether kernels of gradients know the derivative of what it does to a score
    tried: float = 1.0  # the interpreter's value; a tensor has it for its first head, and 1 more for each further head
    drawn: tuple[float, float] = (0.0, 1.0)  # mean and standard deviation of a tensor's normal numbers on a GPU

    @property
    def name(self) -> str:
        """Returns the name of the kernel's parameter."""
        return self.parameter.name

    @property
    def is_number(self) -> bool:
        """Returns True if the feature's value is a number, False if it only says whether the feature is there."""
        return self.parameter.kind == "scalar"

    @property
    def per_head(self) -> bool:
        """Returns True if the call gives a tensor for the feature, with one fp32 for each head of Q."""
        return self.parameter.dims == ("heads",)

    @property
    def counts_once(self) -> bool:
        """Returns True if a row has the feature once, however many keys it has, and in however many parts these are."""
        return self.acts == "extra score"

    @property
    def changes_scores(self) -> bool:
        """Returns True if the feature changes scores or their factor, so that a kernel needs its value before them."""
        return self.acts in ("factor", "scores", "all scores")

    @property
    def off(self) -> Value:
        """Returns the value of a feature that is not asked for, 0.0 for a number, otherwise False."""
        return 0.0 if self.is_number else False

    @property
    def option(self) -> str:
        """Returns the feature's option on the command line, such as `--softcap`."""
        return f"--{self.word.replace('_', '-')}"

    def checked(self, value: object) -> Value:
        """Checks a value given for the feature, and returns it as a float if the feature is a number, else as a bool.

        Raises InputError for a value that is none.
        """
        if self.is_number:
            return self.check(value)
        if not isinstance(value, bool):
            raise InputError(f"{self.word} is {shown(value)}, expected True or False")
        return value

    def said(self, value: Value) -> str:
        """Returns the feature with this value in words, such as `softcap 30` or `sinks`."""
        return f"{self.word} {value:g}" if self.is_number else self.words.removeprefix("the ")


# Inputs have the words of their arguments. The tensors among them are positional arguments of the operator, in this
# order: a new one comes last.
FEATURES = (
    Feature(
        "softcap",
        "softcap",
        "all scores",
        Parameter("softcap", "scalar", dtype="float32", optional=True),
        help="scores are capped by this; 0 is off",
        words="softcap",
        check=_softcap,
        check_with_scale=_softcap_with_scale,
        elsewhere=("logits_soft_cap",),
        transformers="softcap",
        peers={"fa3": "softcap"},
        has_slope=True,
        tried=2.0,
    ),
    Feature(
        "sinks",
        "sinks",
        "extra score",
        Parameter("Sinks", "input", ("heads",), "float32", optional=True),
        help="each head has a sink, one more score of every row",
        words="sinks",
        elsewhere=("s_aux",),
        transformers="s_aux",
        has_gradient=True,
        tried=5.0,
        # Some weigh as much as a row's keys, some nothing.
        drawn=(2.0, 4.0),
    ),
    Feature(
        "lse",
        "return_lse",
        "result",
        Parameter("LSE", "output", ("batch", "heads", "seq_q"), "float32", optional=True),
        help="the kernel returns the LSE of each row too",
        words="the LSE",
        elsewhere=("return_softmax_lse", "return_attn_probs"),
    ),
)
BY_WORD = {feature.word: feature for feature in FEATURES}
# In the order in which they act.
IN_ORDER = sorted(FEATURES, key=lambda feature: (feature.acts == "result") - (feature.acts == "factor"))
# What a kernel reads, and what it writes besides.
INPUTS = tuple(feature for feature in FEATURES if feature.acts != "result")
RESULTS = tuple(feature for feature in FEATURES if feature.acts == "result")
NUMBERS = tuple(feature for feature in FEATURES if feature.is_number)


@dataclass(frozen=True, init=False)
class FeatureValues(Mapping[str, Value]):
    """FeatureValues map the words of the features that a problem asks for to their values; other features are off.

    Hashable. `FeatureValues(softcap=30.0, lse=True)` raises InputError for a bad value, and TypeError for a word
    that is none.
    """

    pairs: tuple[tuple[str, Value], ...]  # (word, value)

    def __init__(self, **values: object) -> None:
        if unknown := values.keys() - BY_WORD.keys():
            raise TypeError(f"{sorted(unknown)[0]!r} is no feature, expected some of {', '.join(BY_WORD)}")
        checked = ((feature, feature.checked(values[feature.word])) for feature in FEATURES if feature.word in values)
        pairs = tuple((feature.word, value) for feature, value in checked if value != feature.off)
        object.__setattr__(self, "pairs", pairs)

    def __getitem__(self, word: str) -> Value:
        return dict(self.pairs).get(word, BY_WORD[word].off)

    def __iter__(self) -> Iterator[str]:
        return (word for word, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __contains__(self, word: object) -> bool:
        return any(word == asked for asked, _ in self.pairs)

    @property
    def features(self) -> tuple[Feature, ...]:
        """Returns the Feature of each word that is asked for."""
        return tuple(BY_WORD[word] for word in self)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Returns the names of the kernel's optional parameters for the features that are asked for."""
        return tuple(feature.name for feature in self.features)

    def __str__(self) -> str:
        return ", ".join(BY_WORD[word].said(value) for word, value in self.pairs)

    def but(self, **values: object) -> FeatureValues:
        """Returns a copy with these features' values changed. Raises as the constructor does."""
        return FeatureValues(**{**dict(self.pairs), **values})


NOTHING = FeatureValues()


def features_of(parameters: Iterable[str]) -> tuple[Feature, ...]:
    """Returns the features whose kernel parameter is among these names, in the order of FEATURES."""
    names = {*parameters}
    return tuple(feature for feature in FEATURES if feature.name in names)


def mix_rows(features: Iterable[Feature]) -> bool:
    """Says whether one of the features has a form, the faster, in which a row's bits depend on the rows beside it."""
    return any(feature.acts == "all scores" for feature in features)


def acting_in_main_kernel(features: Iterable[Feature], in_parts: bool) -> tuple[Feature, ...]:
    """Returns the features that act in the main kernel: with keys in parts, sinks only act where parts are merged."""
    return tuple(feature for feature in features if not (in_parts and feature.counts_once))


def keep_heads_apart(features: Iterable[Feature]) -> bool:
    """Says whether rows of several heads cannot lie in one tile, as scores change by a number of the tile's head."""
    return any(feature.per_head and feature.changes_scores for feature in features)


def take_features(options: dict[str, Any]) -> dict[str, Any]:
    """Removes all features from a dict of options, and returns them as a dict from word to value."""
    return {word: options.pop(word) for word in BY_WORD if word in options}
