"""The optional keys of a schedule: what `lowering: warp_specialized` lets it choose beyond order, stage and group.

`results/experiments-h200.md` and `experiments-causal-h200.md` have what each was predicted to do, and did.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

from tl_attention.schedule.statement_name import MOST_CHUNKS, StatementName


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Registers = Annotated[
    tuple[Annotated[StrictInt, Field(ge=24, le=240, multiple_of=8)], ...], Field(min_length=2, max_length=2)
]


class KernelOptions(_Options):
    """How the kernel uses the machine."""

    k_stages: Annotated[
        StrictInt | None, Field(ge=1, le=8, description="buffers of K_shared; num_stages by default")
    ] = None
    v_stages: Annotated[
        StrictInt | None, Field(ge=1, le=8, description="buffers of V_shared; num_stages by default")
    ] = None
    tile_scheduler: Annotated[
        Literal["one_tile", "static", "dynamic"],
        Field(
            description=(
                "one_tile: a thread block per row tile; static: a block per SM takes every n-th tile; dynamic: a block per "
                "SM takes the next tile from a counter in global memory"
            )
        ),
    ] = "static"
    tile_order: Annotated[
        Literal["rows", "tapered", "sections"],
        Field(
            description=(
                "rows: one head after another, its longest tile first; tapered: the same, but the tiles of the last heads "
                "from the longest to the shortest, so that the kernel ends with short ones; sections: that for as many "
                "heads at a time as the L2 cache holds"
            )
        ),
    ] = "rows"
    cluster: Annotated[
        StrictInt,
        Field(ge=1, le=2, description="2: two blocks of neighbouring row tiles share each load of K and V (multicast)"),
    ] = 2
    ping_pong: Annotated[
        StrictBool, Field(description="warpgroups take turns to issue their products, by named barriers")
    ] = False
    q_operand: Annotated[Literal["shared", "registers"], Field(description="where MMA0 reads Q from")] = "shared"
    output: Annotated[
        Literal["direct", "vector", "tma"],
        Field(
            description=(
                "direct: each thread stores the 4 bytes that it holds; vector: lanes exchange them and store 16 bytes; "
                "tma: through the rows of Q_shared"
            )
        ),
    ] = "vector"
    waits: Annotated[
        Literal["exact", "loose", "free"],
        Field(
            description=(
                "what keeps a product's wait behind the chunk of exponentials that comes before it in order: exact: all "
                "of the chunk before it, all the others after it; loose: the chunk's last one before it; free: nothing"
            )
        ),
    ] = "loose"
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
        Field(description="the scale is part of the exponent's FMA, else it multiplies the difference to scores_max"),
    ] = True
    row_max: Annotated[
        Literal["thread", "row"],
        Field(
            description=(
                "thread: each thread goes on from the row's maximum so far, then the row's threads compare; row: each "
                "starts from nothing, and the row's maximum so far is compared last"
            )
        ),
    ] = "row"
    row_sum: Annotated[
        Literal["thread", "row"],
        Field(description="thread: summed per thread, reduced once after the loop; row: over the row in each block"),
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
    ] = 0.0
    exp2_polynomial: Annotated[Exp2Polynomial | None, Field(description="exponentials on the FMA units")] = None


# The columns of a chunk come in multiples of this.
CHUNK_UNIT = 16
Columns = Annotated[
    tuple[Annotated[StrictInt, Field(ge=CHUNK_UNIT, multiple_of=CHUNK_UNIT)], ...],
    Field(min_length=2, max_length=MOST_CHUNKS),
]


class Split(_Options):
    """Statements cut into column chunks, which are statements of their own: exp into exp.0, exp.1, ..."""

    exp: Annotated[Columns | None, Field(description="columns of each chunk of exp, block_N in total")] = None
    row_sum: Annotated[Columns | None, Field(description="columns of each chunk of row_sum, block_N in total")] = None
    cast: Annotated[Columns | None, Field(description="columns of each chunk of cast, block_N in total")] = None
    rescale: Annotated[Columns | None, Field(description="columns of each chunk of rescale, head_dim in total")] = None

    def columns(self, statement: str) -> tuple[int, ...] | None:
        """The widths of a statement's chunks, or None if it is whole."""
        return getattr(self, statement, None)


class Waits(_Options):
    """Statements before which a product is waited for, earlier than a dependence asks."""

    mma0: Annotated[StatementName | None, Field(description="wait for MMA0 right before this statement")] = None
    mma1: Annotated[StatementName | None, Field(description="wait for MMA1 right before this statement")] = None


class Releases(_Options):
    """Statements before which a buffer is released, later than right after its last reader is done."""

    load_k: Annotated[StatementName | None, Field(description="release K_shared right before this statement")] = None
    load_v: Annotated[StatementName | None, Field(description="release V_shared right before this statement")] = None


OPTION_KEYS = ("kernel", "softmax", "split", "wait_before", "release_before")
