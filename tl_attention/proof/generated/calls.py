"""All statements of generated CUDA that are read, each shown beside what matches it in the file that has it."""

from tl_attention.proof.generated.barriers import BARRIER_CALLS
from tl_attention.proof.generated.copies import COPY_CALLS
from tl_attention.proof.generated.counter import COUNTER_CALLS
from tl_attention.proof.generated.fragments import FRAGMENT_CALLS
from tl_attention.proof.generated.lse import LSE_CALLS
from tl_attention.proof.generated.per_head import PER_HEAD_CALLS
from tl_attention.proof.generated.products import PRODUCT_CALLS
from tl_attention.proof.generated.put import PUT_CALLS

CALLS = (
    *BARRIER_CALLS,
    *COPY_CALLS,
    *COUNTER_CALLS,
    *FRAGMENT_CALLS,
    *LSE_CALLS,
    *PRODUCT_CALLS,
    *PUT_CALLS,
    *PER_HEAD_CALLS,
)
