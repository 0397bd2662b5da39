"""`python -m tl_attention` is the console script `tl-attention`."""

from tl_attention.lab.cli import main

if __name__ == "__main__":
    main(prog_name="tl-attention")
