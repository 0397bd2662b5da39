"""The call that puts P in shared memory for its product: whose rows, which columns, and how wide the tile is.

That a warp puts its own 16 rows where a product reads them, each once, is in the text of the device function, as is the
conversion. Which registers go there is for the numbers to show.
"""

from __future__ import annotations

import re

from tl_attention.proof.events import Event
from tl_attention.proof.generated.copies import IN_SHARED, WRITE
from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.parts import Expected, Part
from tl_attention.proof.generated.refused import Unsafe
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class
from tl_attention.proof.generated.tiles import Tile

PUT = "put"


def _put(match: re.Match[str], declared: Declared) -> Made:
    columns, first, end = map(int, match.groups()[:3])
    dtype, registers, place = "bfloat16" if match[4] == "true" else "float16", match[5], IN_SHARED.match(match[6])
    # A thread has two rows of 64, and every fourth pair of columns.
    if not place or declared.registers.get(registers) != 4 * columns // 2:
        raise SyntaxError(f"a store of P of a form that is not known: {match.string[:80]!r}")
    buffer, element = declared.buffer(place[2]), declared.expression(place[3])

    def act(run: Run, threads: Class, line: int) -> None:
        at = run.value(element, threads)
        form = columns, dtype, registers
        run.see(threads, line, PUT, buffer, element=at, form=form, columns=(first, end))

    return Made(act)


PUT_CALLS = (
    # tl_attention_store_p<192, 0, 192, true>(acc_s, (&(((bfloat16_t*)P_shared)[(((int64_t)wg_2) * (int64_t)12288)])));
    Call(WRITE, re.compile(r"tl_attention_store_p<(\d+), (\d+), (\d+), (true|false)>\((\w+), (.+)\);$"), _put),
)


def put(part: Part, expected: Expected) -> Event:
    """The columns of a slot that a warpgroup puts there, as the product multiplies them: of the scores. Raises Unsafe."""
    scores, multiplied = expected.products.values()
    tile = multiplied.a
    if not isinstance(tile, Tile) or part.seen.name != tile.buffer:
        raise Unsafe(f"line {part.line}: it puts P in {part.seen.name}, from where no product reads it")
    form, (first, end) = part.seen.values["form"], part.seen.values["columns"]
    wanted = tile.columns, expected.dtype, scores.accumulators
    slot, beyond = divmod(part.one("element"), tile.elements)
    if form != wanted or beyond:
        raise Unsafe(
            f"line {part.line}: it puts {form} {beyond} elements behind the start of a slot, expected {wanted}"
        )
    return Event(PUT, tile.buffer, slot, place=() if (first, end) == (0, tile.columns) else (first, end))
