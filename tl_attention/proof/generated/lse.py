"""The call that stores a logarithm for each row of a tile: which rows they are, and how many there may be.

That each row is stored once, by one lane, is in the text of the device function. Which registers it is given, and the
scale, are for the numbers to show.
"""

from __future__ import annotations

import re

from tl_attention.proof.generated.copies import IN_GLOBAL, OUTPUT, registers_from
from tl_attention.proof.generated.declared import Declared
from tl_attention.proof.generated.expression import arguments
from tl_attention.proof.generated.nodes import Made
from tl_attention.proof.generated.run import Run
from tl_attention.proof.generated.text import Call
from tl_attention.proof.generated.threads import Class

# Of a thread's two rows.
BYTES, ROWS = 8, 2
# Which thread of those that compute it is: all of them, from the first on.
OWN = "((int)threadIdx.x)"


def _lse(match: re.Match[str], declared: Declared) -> Made:
    given = arguments(match[1])
    place = IN_GLOBAL.match(given[3]) if len(given) == 6 and given[5] == OWN else None
    of_rows = [registers_from(text) for text in given[:2]]
    index = of_rows[0][1]
    there = all(at == index and BYTES // ROWS * at + BYTES <= declared.registers.get(name, 0) for name, at in of_rows)
    if not place or place[1] in declared.registers or not there or not declared.pure(given[2]):
        raise SyntaxError(f"a store of logarithms of a form that is not known: {match.string[:80]!r}")
    tensor, element, bound = place[1], declared.expression(place[2]), declared.expression(given[4])

    def act(run: Run, threads: Class, line: int) -> None:
        at, rows = run.value(element, threads), run.value(bound, threads)
        run.see(threads, line, "rows of lse", tensor, element=at, rows=rows, index=index)

    return Made(act)


LSE_CALLS = (
    # tl_attention_store_lse(scores_max, denominator, (softmax_scale * ...), (&(LSE[...])), (seq_q - ...), ((int)threadIdx.x));
    # tl_attention_store_lse((&(scores_max[2])), (&(denominator[2])), ...
    Call(OUTPUT, re.compile(r"tl_attention_store_lse\((.+)\);$"), _lse),
)
