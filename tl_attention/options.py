"""The optional keys of a schedule: what `lowering: warp_specialized` lets it choose beyond order, stage and group.

Defaults are the best measured; `results/experiments-h200.jsonl` has the measurements of the others.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt


class _Options(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
        Field(description=(
            "one_tile: a thread block per row tile; static: a block per SM takes every n-th tile; dynamic: a block per "
            "SM takes the next tile from a counter in global memory"
        )),
    ] = "static"
    tile_order: Annotated[
        Literal["rows", "sections"],
        Field(description=(
            "rows: the tiles of a head together; sections: as many heads together as the L2 cache holds, their longest "
            "tiles first. Causal tiles go from the longest to the shortest in either"
        )),
    ] = "rows"
    cluster: Annotated[
        Literal[1, 2], Field(description="2: two blocks of neighbouring row tiles share each K and V load (TMA multicast)")
    ] = 2
    ping_pong: Annotated[
        StrictBool, Field(description="warpgroups take turns to issue their products, by named barriers")
    ] = False
    q_operand: Annotated[
        Literal["shared", "registers"], Field(description="where MMA0 reads Q from")
    ] = "shared"
    output: Annotated[
        Literal["direct", "vector", "tma"],
        Field(description=(
            "direct: each thread stores the 4 bytes that it holds; vector: lanes exchange them and store 16 bytes; tma: "
            "through the rows of Q_shared"
        )),
    ] = "vector"
    registers: Annotated[
        tuple[StrictInt, StrictInt] | None,
        Field(description="registers of a thread that computes and of a producer's (setmaxnreg); by block_M by default"),
    ] = None


class Exp2Polynomial(_Options):
    """Which exponentials are computed by polynomial on the FMA units instead of MUFU.EX2."""

    every: Annotated[StrictInt, Field(ge=1, le=64, description="every n-th exponential of a thread")]
    first: Annotated[StrictInt, Field(ge=0, le=127, description="the first of them")] = 0
    degree: Annotated[StrictInt, Field(ge=2, le=5, description="degree of the polynomial")] = 3


class SoftmaxOptions(_Options):
    """How the softmax is computed."""

    fused_scale: Annotated[
        StrictBool, Field(description="the scale is part of the exponent's FMA, else acc_s is scaled first")
    ] = True
    row_sum: Annotated[
        Literal["thread", "row"],
        Field(description="thread: sums per thread, reduced once after the loop; row: reduced over the row in every block"),
    ] = "thread"
    rescale_threshold: Annotated[
        StrictFloat, Field(ge=0, le=16, description=(
            "the maximum is kept, and acc_o not rescaled, while it would grow by less than this, in base-2 exponents"
        )),
    ] = 0.0
    exp2_polynomial: Annotated[Exp2Polynomial | None, Field(description="exponentials on the FMA units")] = None


Columns = Annotated[
    tuple[Annotated[StrictInt, Field(ge=16, multiple_of=16)], ...], Field(min_length=2, max_length=16)
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

    mma0: str | None = None
    mma1: str | None = None


class Releases(_Options):
    """Statements before which a buffer is released, later than right after its last reader is done."""

    load_k: str | None = None
    load_v: str | None = None


OPTION_KEYS = ("kernel", "softmax", "split", "wait_before", "release_before")
