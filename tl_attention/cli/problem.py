"""The options that say which problem is meant."""

from __future__ import annotations

import click

from tl_attention.problem.shape import SHAPE_TEXT
from tl_attention.problem.window import WINDOW_TEXT

# More would take days, and tell no more.
MOST_ROUNDS = 10_000
DEFAULT_SHAPE = "4,64,8192,128"
shape_option = click.option("--shape", default=DEFAULT_SHAPE, show_default=True, help=SHAPE_TEXT)
causal_option = click.option("--causal", is_flag=True)
window_option = click.option("--window", default="-1,-1", help=WINDOW_TEXT)
softcap_option = click.option("--softcap", type=float, default=0.0, help="scores capped by it; 0 is off")
sinks_option = click.option("--sinks", is_flag=True, help="with a sink for each head")
lse_option = click.option("--lse", is_flag=True, help="with the LSE beside the output")
