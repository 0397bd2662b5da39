"""These are the optional keys of a schedule: what a lowering may let it choose beyond order, stage and group.

docs/experiments.md has the predicted and the measured effect of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    WithJsonSchema,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from tl_attention.problem.bounds import MOST_WORKERS
from tl_attention.schedule.key_words import joined_by_and, shown, suggestion
from tl_attention.schedule.loop.attention import FRAGMENTS
from tl_attention.schedule.loop.exp2 import COEFFICIENTS
from tl_attention.schedule.loop.loops import (
    CUT_SIZES,
    FORWARD,
    IN_CHUNKS,
    LOADS,
    LOOPS,
    NAMES,
    NUMBER,
    PRODUCTS,
    cut_like,
)

# --- how a key names a statement: by name, by number in source order, or a chunk of a split one as `exp.0` ------------

MOST_CHUNKS = 16
CHUNK = re.compile(rf"({'|'.join(IN_CHUNKS)})\.([0-9]|1[0-5])")
EVERY_NAME = (*NAMES, *(f"{name}.{chunk}" for name in IN_CHUNKS for chunk in range(MOST_CHUNKS)))


# Only statements of the forward may be given by number.
NUMBERED = len(LOOPS[FORWARD].names) + len(FRAGMENTS)


def _to_name(statement: Any) -> Any:
    """Returns the name of a statement that is given by number or name, or raises PydanticCustomError."""
    if isinstance(statement, int) and not isinstance(statement, bool) and 0 <= statement < NUMBERED:
        return NAMES[statement]
    if isinstance(statement, str) and (statement in NUMBER or CHUNK.fullmatch(statement)):
        return statement
    words = suggestion(statement, EVERY_NAME).rstrip() if isinstance(statement, str) else ""
    words = words or (
        f"expected a number 0 to {NUMBERED - 1}, one of {', '.join(NAMES)}, or a chunk of {' or '.join(IN_CHUNKS)}: "
        f"exp.0 to exp.{MOST_CHUNKS - 1}"
    )
    raise PydanticCustomError("statement", "{words}", {"words": f"{shown(statement)} is no statement, {words}"})


StatementName = Annotated[
    str,
    BeforeValidator(_to_name),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(NAMES)},
                {"type": "integer", "minimum": 0, "maximum": NUMBERED - 1},
                {"type": "string", "pattern": f"^{CHUNK.pattern}$"},
            ]
        }
    ),
]


# --- an option: its default, its limits, and its values in words ------------------------------------------------------


class _Words:
    """_Words holds, for each value of an option, the words that say what the option does at this value."""

    def __init__(self, values: Mapping[Any, str], any_value: str):
        self._values = values
        # Words for a value without words of its own, formatted with it: {0}, or {0.every} for one of its keys.
        self._any_value = any_value

    def of(self, value: Any) -> str:
        """Returns the words for what an option does at this value, "" where there are none."""
        if value in self._values:
            return self._values[value]
        text = " + ".join(map(str, value)) if isinstance(value, tuple) else value
        return "" if value is None else self._any_value.format(text)

    def __call__(self, schema: dict[str, Any]) -> None:
        """Sets the key's description in pydantic's JSON Schema to the words of all values, if they are all it has."""
        if not self._any_value:
            of_each = (
                f"{value if isinstance(value, str) else shown(value)}: {words}" for value, words in self._values.items()
            )
            schema["description"] = "; ".join(of_each)


def _option(default: Any, values: Mapping[Any, str] | None = None, any_value: str = "", **limits: Any) -> Any:
    """Returns the pydantic field of an optional key, with its default, its limits and the words for its values."""
    return Field(default, json_schema_extra=_Words(values or {}, any_value), **limits)


def _choice(default: str, **values: str) -> Any:
    """Returns the pydantic field of an optional key whose value is a word, with what each word does."""
    return _option(default, values)


def _switch(default: bool, *, on: str, off: str) -> Any:
    """Returns the pydantic field of an optional key that is true or false, with what each of the two does."""
    return _option(default, {True: on, False: off})


def words_of(field: FieldInfo, value: Any) -> str:
    """Returns the words for what an option does at this value; "" if its field has no words."""
    words = field.json_schema_extra
    return words.of(value) if isinstance(words, _Words) else ""


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Registers = Annotated[
    tuple[Annotated[StrictInt, Field(ge=24, le=240, multiple_of=8)], ...], Field(min_length=2, max_length=2)
]


def _buffers(ring: str) -> Any:
    by_default, description = {None: f"{ring} has num_stages buffers"}, f"buffers of {ring}; num_stages by default"
    return _option(None, by_default, f"buffers of {ring}", ge=1, le=8, description=description)


class KernelOptions(_Options):
    """How the kernel uses the machine."""

    k_stages: StrictInt | None = _buffers("K_shared")
    v_stages: StrictInt | None = _buffers("V_shared")
    q_stages: StrictInt | None = _buffers("Q_shared")
    do_stages: StrictInt | None = _buffers("dO_shared")
    tile_scheduler: Literal["one_tile", "static", "dynamic"] = _choice(
        "static",
        one_tile="one thread block per row tile, not persistent",
        static="persistent, each thread block takes every n-th row tile",
        dynamic="persistent, the next row tile comes from a counter in global memory",
    )
    tile_order: Literal["rows", "tapered", "sections"] = _choice(
        "rows",
        rows="row tiles of one head after another, each head's longest first",
        tapered="row tiles of the last heads from the longest to the shortest, to end with these; packed ones always are",
        sections="row tiles in sections of heads whose K and V fit in L2, the longest tiles first",
    )
    blocks_per_sm: StrictInt = _option(
        1,
        {1: "a thread block has an SM to itself"},
        "{0} thread blocks share an SM",
        ge=1,
        le=3,
        description="thread blocks that share an SM: each has so large a part of it",
    )
    cluster: StrictInt = _option(
        2,
        {
            1: "no cluster, every thread block loads its own K and V",
            2: "two thread blocks of neighbouring row tiles share each load of K and V",
        },
        ge=1,
        le=2,
    )
    early: StrictBool = _switch(
        False,
        on="thread blocks begin beside the last ones of the kernel before, and wait for its end before they read",
        off="thread blocks begin when the kernel before has ended",
    )
    rows_of: Literal["head", "group"] = _choice(
        "head",
        head="a row tile has rows of one head",
        group="a row tile has rows of heads that share K and V, where that makes fewer tiles",
    )
    part_blocks: StrictInt | None = _option(
        None,
        {None: "a row tile takes all of its keys"},
        "where row tiles are few, their keys are computed side by side in parts of {0} or more KV blocks; a second kernel merges them",
        ge=1,
        le=16,
        description="least KV blocks of a part of the keys; where row tiles are few, parts are computed side by side and merged",
    )
    ping_pong: StrictBool = _switch(
        False,
        on="the two warpgroups take turns to issue their products",
        off="warpgroups issue their products when they get there",
    )
    q_operand: Literal["shared", "registers"] = _choice(
        "shared", shared="MMA0 reads Q from shared memory", registers="MMA0 reads Q from registers"
    )
    p_operand: Literal["registers", "shared"] = _choice(
        "registers", registers="MMA1 reads P from registers", shared="MMA1 reads P from shared memory"
    )
    output: Literal["direct", "vector", "tma"] = _choice(
        "vector",
        direct="each thread stores the 4 bytes of output that it holds",
        vector="lanes exchange the output and store 16 bytes each",
        tma="the output leaves by TMA, through the rows of Q_shared",
    )
    waits: Literal["exact", "loose", "free"] = _choice(
        "loose",
        exact="a product's wait stands right behind the chunk of exponentials before it in the order",
        loose="a product's wait stays behind the last exponential of the chunk before it in the order",
        free="ptxas may move a product's wait before exponentials that come first in the order",
    )
    swizzle: StrictBool = _switch(
        True,
        on="tiles are swizzled in shared memory, so that ldmatrix meets no bank twice",
        off="tiles stand row after row in shared memory: ldmatrix meets each bank eight times",
    )
    ldmatrix: Literal["x4", "x2"] = _choice(
        "x4",
        x4="an ldmatrix brings fragments of K, or V, for two products",
        x2="an ldmatrix brings fragments of K, or V, for one product",
    )
    # Without words: `explain` has it beside the registers that there are.
    registers: Registers | None = Field(
        None, description="registers of a thread that computes and of the producer's (setmaxnreg); else by block_M"
    )

    def workers(self, sms: int) -> int:
        """Returns how many blocks, or clusters of blocks, so many SMs hold at once; at least one.

        Those of a persistent kernel work on one tile after another.
        """
        return max(1, min(sms * self.blocks_per_sm // self.cluster, MOST_WORKERS))


class Exp2Polynomial(_Options):
    """Which exponentials are computed by polynomial on the FMA units instead of MUFU.EX2."""

    every: StrictInt = Field(ge=1, le=64, description="every n-th exponential of a thread")
    first: StrictInt = Field(0, ge=0, le=127, description="the first of them, counted from 0")
    degree: StrictInt = Field(
        3, ge=min(COEFFICIENTS), le=max(COEFFICIENTS), description="its degree; exp2.py has the error of each"
    )


class SoftmaxOptions(_Options):
    """How the softmax is computed."""

    fused_scale: StrictBool = _switch(
        True, on="the scale is part of the exponent's FMA", off="acc_s is scaled before the exponent, not by its FMA"
    )
    row_max: Literal["thread", "chains", "row"] = _choice(
        "row",
        thread="row_max goes on from the row's maximum so far in every thread",
        chains="row_max takes the even and the odd columns of every thread apart, and goes on from the row's maximum so far",
        row="row_max starts from nothing and compares the row's maximum so far last",
    )
    row_sum: Literal["thread", "row"] = _choice(
        "thread",
        thread="row_sum is summed per thread and reduced once after the loop",
        row="row_sum reduces over the row in every block, not once after the loop",
    )
    # At 16 an exponential could be 65,536, which fp16 does not have.
    rescale_threshold: StrictFloat = _option(
        0.0,
        {0.0: "a row takes every new maximum, and its acc_o is rescaled"},
        "a row keeps its maximum, and its acc_o, until it would grow by more than 2^{0:g}",
        ge=0,
        le=15,
        description=(
            "a row's maximum is kept, and its acc_o not rescaled, while it would grow by no more than this, in base-2 "
            "exponents"
        ),
    )
    exp2_polynomial: Exp2Polynomial | None = _option(
        None,
        {None: "every exponential by MUFU.EX2"},
        "1 in {0.every} exponentials of a thread, from its exponential {0.first} on, by a polynomial of degree "
        "{0.degree} on the FMA units, the others by MUFU.EX2",
        description="exponentials on the FMA units",
    )


# The columns of a chunk come in multiples of this.
CHUNK_UNIT = 16
Columns = Annotated[
    tuple[Annotated[StrictInt, Field(ge=CHUNK_UNIT, multiple_of=CHUNK_UNIT)], ...],
    Field(min_length=2, max_length=MOST_CHUNKS),
]


C = TypeVar("C", bound="OfStatements")


class OfStatements(_Options):
    """OfStatements are options with a key for each statement of a loop that they are about, from the loops' Tables."""

    if TYPE_CHECKING:

        def __getattr__(self, statement: str) -> Any: ...


def _with_fields(fields: Mapping[str, tuple[Any, Any]]) -> Callable[[type[C]], type[C]]:
    """Returns a decorator that gives a class of options these fields by name, each a type and pydantic's field."""
    given: dict[str, Any] = {**fields}
    return lambda of: create_model(of.__name__, __base__=of, __doc__=of.__doc__, __module__=__name__, **given)


def _chunks(statement: str, size: str | int) -> tuple[Any, Any]:
    of = joined_by_and([statement, *(fragment for fragment, product in FRAGMENTS.items() if product == statement)])
    description = f"columns of each chunk of {of}, {size} in total"
    return Columns | None, _option(None, any_value="in chunks of {0} columns", description=description)


@_with_fields({name: _chunks(name, size) for name, size in CUT_SIZES.items()})
class Split(OfStatements):
    """Statements cut into column chunks, which are statements of their own: exp into exp.0, exp.1, ..."""

    def columns(self, statement: str) -> tuple[int, ...] | None:
        """Returns the widths in columns of a statement's chunks; None if the statement is not split."""
        return getattr(self, cut_like(statement), None)


def _waited_for(statement: str) -> tuple[Any, Any]:
    description = f"wait for {statement.removeprefix('load_').upper()} right before this statement"
    return StatementName | None, _option(None, any_value="waited for before {0}, no later", description=description)


@_with_fields({name: _waited_for(name) for name in (*LOADS, *PRODUCTS)})
class Waits(OfStatements):
    """Statements before which a product, or a load, is waited for, earlier than a dependence asks."""


def _released(load: str) -> tuple[Any, Any]:
    buffer = f"{load.removeprefix('load_').upper()}_shared"
    any_value = f"{buffer} is released before {{0}}, no earlier"
    return StatementName | None, _option(
        None, any_value=any_value, description=f"release {buffer} right before this statement"
    )


@_with_fields({load: _released(load) for load in LOADS})
class Releases(OfStatements):
    """Statements before which a buffer is released, later than right after its last reader is done."""


OPTIONS: dict[str, type[_Options]] = {
    "kernel": KernelOptions,
    "softmax": SoftmaxOptions,
    "split": Split,
    "wait_before": Waits,
    "release_before": Releases,
}
OPTION_KEYS = tuple(OPTIONS)
# Each option by its path: `kernel.k_stages`.
OPTION_PATHS = tuple(f"{key}.{name}" for key, options in OPTIONS.items() for name in options.model_fields)
