"""The kernels of "flash attention from scratch" by the notation that it has for them, each a schedule."""
