"""A polynomial p, shared by kernel and interpreter, gives 2^x without MUFU.EX2: 2^floor(x) p(x - floor(x))."""

from __future__ import annotations

# Below, 2^x is no normal float; a masked score, which is -inf, counts as this.
LOWEST = -127.0

# COEFFICIENTS[degree] are those of p by power, the constant first: the polynomials with p(0) = 1 that have the least
# maximum relative error to 2^x on [0, 1). Made by Remez exchange of p(x) / 2^x - 1 over the other coefficients, which
# were then rounded to fp32 and moved by up to 3 units in the last place, two at a time, while that lowered the error.
# p(0) = 1 makes the exponential of a row's maximum exactly 1, and that of -inf 0: of a p(0) below 1 the kernel, which
# adds floor(x) = -127 to the exponent's bits, would make a NaN.
# The errors are 2.1e-3, 8.6e-5, 2.9e-6 and 8.5e-8; rounding to fp16 makes one of 4.9e-4, to bf16 of 3.9e-3.
COEFFICIENTS: dict[int, tuple[float, ...]] = {
    2: (1.0, 0.66596097, 0.3299324),
    3: (1.0, 0.69511676, 0.22764502, 0.07706704),
    4: (1.0, 0.69304484, 0.24128021, 0.05224247, 0.013426685),
    5: (1.0, 0.6931513, 0.24016446, 0.05579993, 0.009017028, 0.00186713),
}
