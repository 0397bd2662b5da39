"""This package is `attention(q, k, v)` for PyTorch: it checks arguments, chooses a schedule and launches the kernel.

It also has the operator with its gradient, and `merge`.
"""
