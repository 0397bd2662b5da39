"""The optional keys of a schedule: what a lowering may let it choose beyond order, stage and group.

docs/experiments.md has what each was predicted to do, and did.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from tl_attention.loop.attention import FRAGMENTS
from tl_attention.schedule.statement_name import MOST_CHUNKS, StatementName
from tl_attention.schedule.words import Words


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Registers = Annotated[
    tuple[Annotated[StrictInt, Field(ge=24, le=240, multiple_of=8)], ...], Field(min_length=2, max_length=2)
]


class KernelOptions(_Options):
    """How the kernel uses the machine."""

    k_stages: Annotated[
        StrictInt | None,
        Field(ge=1, le=8, description="buffers of K_shared; num_stages by default"),
        Words({None: "K_shared has num_stages buffers"}, "buffers of K_shared"),
    ] = None
    v_stages: Annotated[
        StrictInt | None,
        Field(ge=1, le=8, description="buffers of V_shared; num_stages by default"),
        Words({None: "V_shared has num_stages buffers"}, "buffers of V_shared"),
    ] = None
    tile_scheduler: Annotated[
        Literal["one_tile", "static", "dynamic"],
        Words(
            {
                "one_tile": "one thread block per row tile, not persistent",
                "static": "persistent, each thread block takes every n-th row tile",
                "dynamic": "persistent, the next row tile comes from a counter in global memory",
            }
        ),
    ] = "static"
    tile_order: Annotated[
        Literal["rows", "tapered", "sections"],
        Words(
            {
                "rows": "row tiles of one head after another, each head's longest first",
                "tapered": "row tiles of the last heads from the longest to the shortest, to end with these",
                "sections": "row tiles in sections of heads whose K and V fit in L2, the longest tiles first",
            }
        ),
    ] = "rows"
    blocks_per_sm: Annotated[
        StrictInt,
        Field(ge=1, le=3, description="thread blocks that share an SM: each has so large a part of it"),
        Words({1: "a thread block has an SM to itself"}, "{0} thread blocks share an SM"),
    ] = 1
    cluster: Annotated[
        StrictInt,
        Field(ge=1, le=2),
        Words(
            {
                1: "no cluster, every thread block loads its own K and V",
                2: "two thread blocks of neighbouring row tiles share each load of K and V",
            }
        ),
    ] = 2
    ping_pong: Annotated[
        StrictBool,
        Words(
            {
                True: "the two warpgroups take turns to issue their products",
                False: "warpgroups issue their products when they get there",
            }
        ),
    ] = False
    q_operand: Annotated[
        Literal["shared", "registers"],
        Words({"shared": "MMA0 reads Q from shared memory", "registers": "MMA0 reads Q from registers"}),
    ] = "shared"
    p_operand: Annotated[
        Literal["registers", "shared"],
        Words({"registers": "MMA1 reads P from registers", "shared": "MMA1 reads P from shared memory"}),
    ] = "registers"
    output: Annotated[
        Literal["direct", "vector", "tma"],
        Words(
            {
                "direct": "each thread stores the 4 bytes of output that it holds",
                "vector": "lanes exchange the output and store 16 bytes each",
                "tma": "the output leaves by TMA, through the rows of Q_shared",
            }
        ),
    ] = "vector"
    waits: Annotated[
        Literal["exact", "loose", "free"],
        Words(
            {
                "exact": "a product's wait stands right behind the chunk of exponentials before it in the order",
                "loose": "a product's wait stays behind the last exponential of the chunk before it in the order",
                "free": "ptxas may move a product's wait before exponentials that come first in the order",
            }
        ),
    ] = "loose"
    swizzle: Annotated[
        StrictBool,
        Words(
            {
                True: "tiles are swizzled in shared memory, so that ldmatrix meets no bank twice",
                False: "tiles stand row after row in shared memory: ldmatrix meets each bank eight times",
            }
        ),
    ] = True
    ldmatrix: Annotated[
        Literal["x4", "x2"],
        Words(
            {
                "x4": "an ldmatrix brings fragments of K, or V, for two products",
                "x2": "an ldmatrix brings fragments of K, or V, for one product",
            }
        ),
    ] = "x4"
    # Without words: `explain` has it beside the registers that there are.
    registers: Annotated[
        Registers | None,
        Field(description="registers of a thread that computes and of the producer's (setmaxnreg); else by block_M"),
    ] = None


class Exp2Polynomial(_Options):
    """Which exponentials are computed by polynomial on the FMA units instead of MUFU.EX2."""

    every: Annotated[StrictInt, Field(ge=1, le=64, description="every n-th exponential of a thread")]
    first: Annotated[StrictInt, Field(ge=0, le=127, description="the first of them, counted from 0")] = 0
    degree: Annotated[StrictInt, Field(ge=2, le=5, description="its degree; exp2.py has the error of each")] = 3


class SoftmaxOptions(_Options):
    """How the softmax is computed."""

    fused_scale: Annotated[
        StrictBool,
        Words(
            {
                True: "the scale is part of the exponent's FMA",
                False: "acc_s is scaled before the exponent, not by its FMA",
            }
        ),
    ] = True
    row_max: Annotated[
        Literal["thread", "chains", "row"],
        Words(
            {
                "thread": "row_max goes on from the row's maximum so far in every thread",
                "chains": "row_max takes the even and the odd columns of every thread apart, and goes on from the row's maximum so far",
                "row": "row_max starts from nothing and compares the row's maximum so far last",
            }
        ),
    ] = "row"
    row_sum: Annotated[
        Literal["thread", "row"],
        Words(
            {
                "thread": "row_sum is summed per thread and reduced once after the loop",
                "row": "row_sum reduces over the row in every block, not once after the loop",
            }
        ),
    ] = "thread"
    # At 16 an exponential could be 65,536, which fp16 does not have.
    rescale_threshold: Annotated[
        StrictFloat,
        Field(
            ge=0,
            le=15,
            description=(
                "a row's maximum is kept, and its acc_o not rescaled, while it would grow by no more than this, in base-2 "
                "exponents"
            ),
        ),
        Words(
            {0.0: "a row takes every new maximum, and its acc_o is rescaled"},
            "a row keeps its maximum, and its acc_o, until it would grow by more than 2^{0:g}",
        ),
    ] = 0.0
    exp2_polynomial: Annotated[
        Exp2Polynomial | None,
        Field(description="exponentials on the FMA units"),
        Words(
            {None: "every exponential by MUFU.EX2"},
            "1 in {0.every} exponentials of a thread, from its exponential {0.first} on, by a polynomial of degree "
            "{0.degree} on the FMA units, the others by MUFU.EX2",
        ),
    ] = None


# The columns of a chunk come in multiples of this.
CHUNK_UNIT = 16
Columns = Annotated[
    tuple[Annotated[StrictInt, Field(ge=CHUNK_UNIT, multiple_of=CHUNK_UNIT)], ...],
    Field(min_length=2, max_length=MOST_CHUNKS),
]


IN_CHUNKS = Words(any_value="in chunks of {0} columns")
WAITED_FOR = Words(any_value="waited for before {0}, no later")


class Split(_Options):
    """Statements cut into column chunks, which are statements of their own: exp into exp.0, exp.1, ..."""

    exp: Annotated[Columns | None, Field(description="columns of each chunk of exp, block_N in total"), IN_CHUNKS] = (
        None
    )
    row_sum: Annotated[
        Columns | None, Field(description="columns of each chunk of row_sum, block_N in total"), IN_CHUNKS
    ] = None
    cast: Annotated[Columns | None, Field(description="columns of each chunk of cast, block_N in total"), IN_CHUNKS] = (
        None
    )
    rescale: Annotated[
        Columns | None, Field(description="columns of each chunk of rescale, head_dim in total"), IN_CHUNKS
    ] = None
    mma0: Annotated[
        Columns | None,
        Field(description="columns of Q and K of each chunk of mma0, frag_q and frag_k, head_dim in total"),
        IN_CHUNKS,
    ] = None
    mma1: Annotated[
        Columns | None, Field(description="keys of each chunk of mma1 and frag_v, block_N in total"), IN_CHUNKS
    ] = None

    def columns(self, statement: str) -> tuple[int, ...] | None:
        """The widths of a statement's chunks, or None if it is whole."""
        return getattr(self, FRAGMENTS.get(statement, statement), None)


class Waits(_Options):
    """Statements before which a product, or a load, is waited for, earlier than a dependence asks."""

    load_k: Annotated[StatementName | None, Field(description="wait for K right before this statement"), WAITED_FOR] = (
        None
    )
    load_v: Annotated[StatementName | None, Field(description="wait for V right before this statement"), WAITED_FOR] = (
        None
    )
    mma0: Annotated[
        StatementName | None, Field(description="wait for MMA0 right before this statement"), WAITED_FOR
    ] = None
    mma1: Annotated[
        StatementName | None, Field(description="wait for MMA1 right before this statement"), WAITED_FOR
    ] = None


class Releases(_Options):
    """Statements before which a buffer is released, later than right after its last reader is done."""

    load_k: Annotated[
        StatementName | None,
        Field(description="release K_shared right before this statement"),
        Words(any_value="K_shared is released before {0}, no earlier"),
    ] = None
    load_v: Annotated[
        StatementName | None,
        Field(description="release V_shared right before this statement"),
        Words(any_value="V_shared is released before {0}, no earlier"),
    ] = None


OPTIONS: dict[str, type[_Options]] = {
    "kernel": KernelOptions,
    "softmax": SoftmaxOptions,
    "split": Split,
    "wait_before": Waits,
    "release_before": Releases,
}
OPTION_KEYS = tuple(OPTIONS)
# Each by its path: `kernel.k_stages`.
OPTION_PATHS = tuple(f"{key}.{name}" for key, options in OPTIONS.items() for name in options.model_fields)
