"""Online softmax as in FlashAttention-2 (Dao, 2023, algorithm 1), in base 2: exp(x) = exp2(x log2 e)."""

import tilelang.language as T

LOG2_E = 1.4426950408889634


def finite(scores_max):
    """0 for a row that has seen no key yet: its maximum is -inf, and -inf - -inf would be NaN."""
    return T.if_then_else(scores_max == -T.infinity("float32"), T.float32(0), scores_max)
