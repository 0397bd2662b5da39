"""A configuration is a kernel in a notation that has its tile and the options that are on.

`(128, 64, 64, 4): async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax` is one. The notation is that of "flash
attention from scratch" (part 6, kernel 7). The numbers are head_dim, query rows and keys of a tile, and warps. The
options that are on follow, always in this order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tl_attention.errors import InputError
from tl_attention.problem.head_dims import TILE_DIMS
from tl_attention.problem.warpgroup import WARP
from tl_attention.schedule.key_errors import first_error
from tl_attention.schedule.key_words import dotted
from tl_attention.schedule.loop.table import chunk_names
from tl_attention.schedule.options import KernelOptions, SoftmaxOptions, Split, Waits
from tl_attention.schedule.schedule import Schedule

EXAMPLE = "(128, 64, 64, 4): async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax"
# How many of an operand's fragments, 8 columns wide, are loaded at a time: all of the tile's before the first
# product, or those of one step of 16 columns.
WHOLE, STEP = 0, 2
# What a fragment load of 2 brings: the columns that an mma.sync multiplies.
STEP_COLUMNS = 16
# The words of the notation in its order: `async`, options, fragments, options. An option is a field of its name.
_LOAD = "load_{}_{}_{}_fragments"
_BEFORE, _BEHIND = ("eager", "swizzled"), ("buffer", "opt_softmax")
_WORDS = "async[+eager][+swizzled]+load_Q_K_V_fragments[+buffer][+opt_softmax]"
_N = "(0|[1-9][0-9]{0,5})"
_NOTATION = re.compile(
    rf"\((?P<head_dim>{_N}), (?P<block_M>{_N}), (?P<block_N>{_N}), (?P<warps>{_N})\): "
    rf"async(?P<eager>\+eager)?(?P<swizzled>\+swizzled)?"
    rf"\+load_(?P<q_fragments>{_N})_(?P<k_fragments>{_N})_(?P<v_fragments>{_N})_fragments"
    rf"(?P<buffer>\+buffer)?(?P<opt_softmax>\+opt_softmax)?"
)
MOST_SHOWN = 80


@dataclass(frozen=True)
class Configuration:
    """A Configuration is one kernel of "flash attention from scratch", with its tile, warps and options.

    K and V come by cp.async: `async` is always on. Raises InputError that names what is wrong and what was expected.
    """

    head_dim: int
    block_M: int
    block_N: int
    warps: int
    eager: bool = False  # copies K and V as early as their buffers are free
    swizzled: bool = False
    q_fragments: int = STEP  # fragments loaded at a time, WHOLE or STEP; a whole Q stays in registers
    k_fragments: int = STEP  # likewise
    v_fragments: int = STEP  # likewise
    buffer: bool = False  # loads a step's fragments before the product of the step before
    opt_softmax: bool = False  # has the scale inside the exponent's FMA

    def __post_init__(self) -> None:
        if not 0 < self.head_dim <= TILE_DIMS[-1] or self.head_dim % STEP_COLUMNS:
            raise InputError(f"head_dim {self.head_dim}, expected a multiple of {STEP_COLUMNS} up to {TILE_DIMS[-1]}")
        for name, count in zip("QKV", self.fragments):
            if count not in (WHOLE, STEP):
                raise InputError(
                    f"{count} fragments of {name} at a time, expected {WHOLE}, all of the tile's, or {STEP}, one step's"
                )
        if self.buffer and STEP not in self.fragments:
            raise InputError(
                f"buffer beside {_LOAD.format(*self.fragments)}: no fragments are loaded in steps, so none can come a "
                f"step before its product; expected no buffer, or {STEP} of Q, K or V"
            )

    @property
    def tile(self) -> tuple[int, int, int, int]:
        """Returns (head_dim, block_M, block_N, warps), the numbers of the notation."""
        return self.head_dim, self.block_M, self.block_N, self.warps

    @property
    def fragments(self) -> tuple[int, int, int]:
        """Returns a tuple of how many fragments of Q, of K and of V are loaded at a time; 0 is all of the tile's."""
        return self.q_fragments, self.k_fragments, self.v_fragments

    @property
    def threads(self) -> int:
        """Returns how many threads a block has."""
        return self.warps * WARP

    def __str__(self) -> str:
        before, behind = ([word for word in words if getattr(self, word)] for words in (_BEFORE, _BEHIND))
        return f"{tile_text(self.tile)}: {'+'.join(['async', *before, _LOAD.format(*self.fragments), *behind])}"


def tile_text(tile: tuple[int, ...]) -> str:
    """Returns the numbers of a tile in parentheses, such as `(128, 64, 64, 4)`."""
    return f"({', '.join(map(str, tile))})"


def parse(text: str) -> Configuration:
    """Reads a text in the notation of configurations as a Configuration. Raises InputError for any other text."""
    match = _NOTATION.fullmatch(text)
    try:
        if match is None:
            raise InputError(f"expected (head_dim, block_M, block_N, warps): {_WORDS}, as in {EXAMPLE}")
        on = {name: match[name] is not None for name in (*_BEFORE, *_BEHIND)}
        numbers: dict[str, Any] = {name: int(text) for name, text in match.groupdict().items() if name not in on}
        return Configuration(**numbers, **on)
    except InputError as error:
        raise InputError(f"configuration {text[:MOST_SHOWN]!r}: {error}") from None


# --- as a schedule of the mma.sync lowering: its options are places in the order, and keys ----------------------------

LOWERING = "mma_sync"
SOFTMAX = ("max_prev", "max_init", "row_max", "max_merge", "scale", "exp", "row_sum", "sum_merge", "rescale")


def schedule_of(configuration: Configuration) -> Schedule:
    """Returns the mma_sync schedule whose kernel copies, loads, multiplies and waits as the configuration says.

    An iteration computes the scores of a KV block, their softmax, and the output of the same block. If it is `eager`,
    V(t) is copied right behind the barrier with which iteration t starts, and K(t+1) right behind the softmax, before
    the fragments of V(t) are loaded; else each is copied where its fragments are needed. Raises InputError if the tile
    breaks a rule of the lowering.
    """
    try:
        return _schedule(configuration)
    except ValueError as error:
        key, message = first_error(error, Schedule)
        raise InputError(f"configuration '{configuration}': {dotted(key)}{message}") from None


def _schedule(configuration: Configuration) -> Schedule:
    c = configuration
    columns, keys = _steps(c.head_dim), _steps(c.block_N)
    of_scores = {"frag_k": c.k_fragments} | ({} if c.q_fragments == WHOLE else {"frag_q": c.q_fragments})
    scores = ("mask", *_multiplied("mma0", of_scores, columns, c.buffer))
    output = ("cast", *_multiplied("mma1", {"frag_v": c.v_fragments}, keys, c.buffer))
    if c.eager:
        # K is copied a block ahead, by iteration t's last part for iteration t+1.
        placed = [(("load_v",), 1), (scores, 1), (SOFTMAX, 1), (("load_k",), 0), (output, 1)]
        waits = Waits.model_validate({"load_k": "load_v", "load_v": "load_k"})
    else:
        placed = [(group, 0) for group in (("load_k",), scores, SOFTMAX, ("load_v",), output)]
        waits = Waits()
    return Schedule(
        lowering=LOWERING,
        kv_order="descending",
        block_M=c.block_M,
        block_N=c.block_N,
        threads=c.threads,
        num_stages=1,
        group=tuple(group for group, _ in placed),
        order=tuple(range(len(placed))),
        stage=tuple(stage for _, stage in placed),
        split=Split.model_validate({"mma0": columns, "mma1": keys}),
        wait_before=waits,
        kernel=KernelOptions(
            q_operand="registers" if c.q_fragments == WHOLE else "shared", swizzle=c.swizzled, ldmatrix="x4"
        ),
        softmax=SoftmaxOptions(fused_scale=c.opt_softmax),
    )


def _steps(columns: int) -> tuple[int, ...] | None:
    """Returns a tuple of 16s, one for each step in which so many columns are multiplied; None for a single step."""
    count = columns // STEP_COLUMNS
    return (STEP_COLUMNS,) * count if count > 1 else None


def _multiplied(product: str, loads: dict[str, int], widths: tuple[int, ...] | None, buffer: bool) -> list[str]:
    """Returns the names of a product's steps and of the loads of their fragments, in the order in which they run."""
    multiplied = chunk_names(product, widths)
    steps = len(multiplied)
    order = [name for load, count in loads.items() if count == WHOLE for name in chunk_names(load, widths)]
    in_steps = [chunk_names(load, widths) for load, count in loads.items() if count == STEP]
    ahead = int(buffer)
    for step in range(-ahead, steps):
        order += [names[step + ahead] for names in in_steps if step + ahead < steps]
        order += [multiplied[step]] if step >= 0 else []
    return order
