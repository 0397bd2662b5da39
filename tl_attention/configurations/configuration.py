"""`(128, 64, 64, 4): async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax`: a kernel as a tile and what is on.

The notation is that of "flash attention from scratch" (part 6, kernel 7). Numbers are head_dim, query rows and keys of a
tile, and warps; then come the options, always in this order, those that are off left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tl_attention.errors import InputError
from tl_attention.hardware.warpgroup import WARP
from tl_attention.problem.head_dims import TILE_DIMS
from tl_attention.schedule.choices import choices
from tl_attention.schedule.keys import Keys

EXAMPLE = "(128, 64, 64, 4): async+eager+swizzled+load_0_2_0_fragments+buffer+opt_softmax"
# Of an operand's fragments, 8 columns wide: all of the tile's before the first product, or those of one step of 16.
WHOLE, STEP = 0, 2
# What a fragment load of 2 brings: the columns that an mma.sync multiplies.
STEP_COLUMNS = 16
# The words of the notation in its order: `async`, options, fragments, options. An option is a field of its name.
_ASYNC, _LOAD = "async", "load_{}_{}_{}_fragments"
_BEFORE, _BEHIND = ("eager", "swizzled"), ("buffer", "opt_softmax")
_WORDS = "+".join([_ASYNC, *_BEFORE, _LOAD.format(*"QKV"), *_BEHIND])
_NUMBER = "[0-9]{1,6}"
_TILE = re.compile(rf"\(({_NUMBER}), ({_NUMBER}), ({_NUMBER}), ({_NUMBER})\)")
_FRAGMENTS = re.compile(_LOAD.format(*[f"({_NUMBER})"] * 3))
MOST_SHOWN = 80


@dataclass(frozen=True)
class Configuration:
    """One kernel of the notation. K and V come by cp.async: `async` is always on.

    `q_fragments`, `k_fragments`, `v_fragments` are how many fragments are loaded at a time: WHOLE or STEP; a whole Q
    stays in registers. `eager` copies K and V as early as their buffers are free, `buffer` loads a step's fragments
    before the product of the step before, `opt_softmax` has the scale inside the exponent's FMA.

    Raises InputError that names what is wrong and what was expected.
    """

    head_dim: int
    block_M: int
    block_N: int
    warps: int
    eager: bool = False
    swizzled: bool = False
    q_fragments: int = STEP
    k_fragments: int = STEP
    v_fragments: int = STEP
    buffer: bool = False
    opt_softmax: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.head_dim <= TILE_DIMS[-1] or self.head_dim % STEP_COLUMNS:
            raise InputError(f"head_dim {self.head_dim}, expected a multiple of {STEP_COLUMNS} up to {TILE_DIMS[-1]}")
        for name, value, known in (
            ("block_M", self.block_M, choices(Keys.model_fields["block_M"])),
            ("block_N", self.block_N, choices(Keys.model_fields["block_N"])),
            ("warps", self.warps, tuple(threads // WARP for threads in choices(Keys.model_fields["threads"]))),
        ):
            if value not in known:
                raise InputError(f"{name} {value}, expected one of {', '.join(map(str, known))}")
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
        """(head_dim, block_M, block_N, warps), the numbers of the notation."""
        return self.head_dim, self.block_M, self.block_N, self.warps

    @property
    def fragments(self) -> tuple[int, int, int]:
        """How many of Q, of K and of V are loaded at a time."""
        return self.q_fragments, self.k_fragments, self.v_fragments

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.warps * WARP

    def __str__(self) -> str:
        before, behind = ([word for word in words if getattr(self, word)] for words in (_BEFORE, _BEHIND))
        return f"{tile_text(self.tile)}: {'+'.join([_ASYNC, *before, _LOAD.format(*self.fragments), *behind])}"


def tile_text(tile: tuple[int, ...]) -> str:
    """The tile as the notation has it: `(128, 64, 64, 4)`."""
    return f"({', '.join(map(str, tile))})"


def parse(text: str) -> Configuration:
    """The configuration that this is the notation of, as `str` writes it. Raises InputError."""
    try:
        found = _parsed(text)
    except InputError as error:
        raise InputError(f"configuration {text[:MOST_SHOWN]!r}: {error}") from None
    if str(found) != text:
        raise InputError(f"configuration {text[:MOST_SHOWN]!r} is not spelled as the notation is, expected {found}")
    return found


def _parsed(text: str) -> Configuration:
    tile_part, colon, options = text.partition(":")
    tile = _TILE.fullmatch(tile_part.strip())
    if tile is None:
        raise InputError(f"{tile_part!r} is no tile, expected (head_dim, block_M, block_N, warps) as in {EXAMPLE}")
    if not colon:
        raise InputError(f"no options behind the tile, expected ': ' and some of {_WORDS}")
    fields: dict[str, Any] = dict(zip(("head_dim", "block_M", "block_N", "warps"), map(int, tile.groups())))
    words = [word.strip() for word in options.split("+")]
    if _ASYNC not in words:
        raise InputError(f"no {_ASYNC}, expected it first: K and V are copied by cp.async, and not otherwise")
    for index, word in enumerate(words):
        if word in words[:index]:
            raise InputError(f"{word!r} stands there twice, expected it once")
        if fragments := _FRAGMENTS.fullmatch(word):
            if "q_fragments" in fields:
                raise InputError(f"{word!r} comes after other fragments, expected one number of Q, of K and of V")
            fields |= zip(("q_fragments", "k_fragments", "v_fragments"), map(int, fragments.groups()))
        elif word in (*_BEFORE, *_BEHIND):
            fields[word] = True
        elif word != _ASYNC:
            raise InputError(f"{word!r} is no option, expected some of {_WORDS}")
    if "q_fragments" not in fields:
        raise InputError(f"no fragments, expected {_LOAD.format(*'QKV')} with {WHOLE} or {STEP} for each")
    return Configuration(**fields)
