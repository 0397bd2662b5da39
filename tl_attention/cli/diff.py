"""`diff`: two schedules beside each other, in their keys, their Programs and their code."""

from __future__ import annotations

import click

from tl_attention.cli.errors import naming
from tl_attention.errors import printable
from tl_attention.named import resolve
from tl_attention.problem import DTYPE_NAMES, HEAD_DIMS, AttentionShape


@click.command()
@click.argument("a")
@click.argument("b")
@click.option("--code/--no-code", "with_code", default=True, show_default=True,
              help="compile both and compare registers, spills and the steady loop's instructions and waits")
@click.option("--dtype", type=click.Choice(sorted(DTYPE_NAMES)), default="fp16", show_default=True, help="of the code")
@click.option("--head-dim", type=int, default=128, show_default=True, help=f"of the code, one of {HEAD_DIMS}")
@click.option("--causal", is_flag=True, help="the code with a causal mask")
def diff(a: str, b: str, with_code: bool, dtype: str, head_dim: int, causal: bool) -> None:
    """What differs between two schedules: in the keys, in the Program, in the code."""
    from tl_attention import diff
    from tl_attention.preflight import refuse_unless_safe

    first, second = resolve(a), resolve(b)
    # Sizes are read at run time, so any will do.
    shape = AttentionShape(1, 1, 128, 128, head_dim, DTYPE_NAMES[dtype], causal)
    schedules, names = (first.schedule, second.schedule), (a, b)
    texts = []
    for named in (first, second):
        with naming(named):
            texts.append(diff.program_text(named.schedule))
    _print([f"a: {a}", f"b: {b}", *diff.keys(*schedules), *diff.program(*texts, names)])
    if with_code:
        for named in (first, second):
            with naming(named):
                refuse_unless_safe(named.schedule, head_dim)
        _print(diff.code(*schedules, names, shape))


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(printable(line))
