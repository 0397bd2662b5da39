"""The online softmax is that of FlashAttention-2 (Dao, 2023, algorithm 1), in base 2: exp(x) = exp2(x log2 e)."""

import tilelang.language as T

LOG2_E = 1.4426950408889634

# By the largest |x|, the coefficients of tanh(x) / x by powers of x^2 with the least maximum relative error, 4.3e-6 and
# 6e-7. The first, of scores up to 11 under a cap of 30, is off by 5e-5 there, where fp16 rounds P by 5e-4.
TANH = {
    0.375: (0.9999957, -0.33278066, 0.12264758),
    0.75: (0.99999946, -0.3332825, 0.13258983, -0.0500563, 0.012929632),
}
# A finite maximum that is as good as infinite, so that differences from it are no NaN.
HIGHEST = 1e30


def finite(scores_max):
    """Returns a row's maximum, or 0 where that is -inf, as of a row that has seen no key. -inf - -inf would be NaN."""
    return T.if_then_else(scores_max == -T.infinity("float32"), T.float32(0), scores_max)


def exponent(score, scores_max, s, c):
    """Returns scale * (score - scores_max), a base-2 exponent, multiplied out if softmax.fused_scale is set."""
    return T.fma(score, s.scale, -(scores_max * s.scale)) if c.softmax.fused_scale else (score - scores_max) * s.scale


def finite_max(scores_max, masked):
    """Returns a row's maximum to subtract from scores; if `masked`, 0 in place of -inf (no key seen yet)."""
    return finite(scores_max) if masked else scores_max


def tanh(x):
    """Returns the hyperbolic tangent, by a polynomial near 0 and by the exponential elsewhere.

    The relative error of 1 - 2 / (1 + e^(2 x)) grows near 0.
    """
    bound, coefficients = max(TANH.items())
    square = x * x
    power = T.float32(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        power = power * square + T.float32(coefficient)
    return T.if_then_else(square < bound**2, x * power, 1 - 2 / (1 + T.exp2(x * (2 * LOG2_E))))
