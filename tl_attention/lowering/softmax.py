"""Online softmax as in FlashAttention-2 (Dao, 2023, algorithm 1), in base 2: exp(x) = exp2(x log2 e)."""

import tilelang.language as T

LOG2_E = 1.4426950408889634


def finite(scores_max):
    """0 for a row that has seen no key yet: its maximum is -inf, and -inf - -inf would be NaN."""
    return T.if_then_else(scores_max == -T.infinity("float32"), T.float32(0), scores_max)


@T.macro
def store_lse(LSE, bz, head, first_row, seq_q, scores_max, row_total, score_scale):
    """LSE = ln 2 (score_scale scores_max + log2 row_total), the logarithm of each row's sum; -inf where it has seen no key."""
    T.call_extern(
        "handle",
        "tl_attention_store_lse",
        scores_max.data,
        row_total.data,
        score_scale,
        T.address_of(LSE[bz, head, first_row]),
        seq_q - first_row,
    )
