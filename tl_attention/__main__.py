"""`python -m tl_attention` is the console script `tl-attention`."""

import sys
from importlib import import_module


def run() -> None:
    """Runs the command line; where its packages are not installed, one line says which extra has them."""
    try:
        main = import_module("tl_attention.lab.cli").main
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("tl_attention"):
            raise
        wanted = "expected what `pip install 'tl-attention[schedules]'` has"
        print(f"error: tl-attention: {error.name} is missing, {wanted}", file=sys.stderr)
        sys.exit(2)
    main(prog_name="tl-attention")


if __name__ == "__main__":
    run()
