"""`--head-dim`: a head size as an option."""

from __future__ import annotations

import click

from tl_attention.problem.head_dims import SUPPORTED, HeadSize, check_head_dim, parse_head_size


class HeadSizeType(click.ParamType):
    """A head size that tensors may have. Raises InputError for another."""

    name = "head_dim"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "N|N/N"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> HeadSize:
        try:
            size = parse_head_size(str(value))
        except ValueError:
            self.fail(f"{str(value)[:40]!r} is no head size, expected {SUPPORTED}, or two of them: 192/128", param, ctx)
        check_head_dim(size)
        return size


HEAD_SIZE = HeadSizeType()
