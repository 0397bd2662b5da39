"""This module computes the prompts of MLA models in vLLM, which loads it where its backend is chosen."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm import envs
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from tl_attention.errors import InputError
from tl_attention.op.varlen import attention_varlen
from tl_attention.problem.card import HOPPER
from tl_attention.problem.head_dims import check_head_dim, head_size


class Prefill(MLAPrefillBackend):  # type: ignore[misc]
    """Prefill runs MLA's prompts, decompressed to as many KV heads as heads, on the kernels.

    Tensors are fp16 or bf16: q and k (rows, heads, qk_nope_head_dim + qk_rope_head_dim), v (rows, heads, v_head_dim),
    the output (rows, heads, v_head_dim). An LSE is fp32 (heads, rows), and -inf for a row that sees no key.
    """

    @staticmethod
    def get_name() -> str:
        """Returns the name that vLLM's log has."""
        return "TL_ATTENTION"

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        """Returns True on a Hopper GPU; vLLM may not know its device, which is None then."""
        return device_capability is not None and (device_capability.major, device_capability.minor) == HOPPER.capability

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: Any) -> bool:
        """Returns True for head sizes that the kernels have."""
        try:
            head_dim = mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim
            check_head_dim(head_size(head_dim, mla_dimensions.v_head_dim))
        except InputError:
            return False
        return True

    def supports_out(self) -> bool:
        """Returns True: both methods write to `out` in place."""
        return True

    def run_prefill_new_tokens(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        return_softmax_lse: bool,
        out: Tensor | None = None,
        output_scale: Tensor | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Computes causal attention of the prompts' new tokens, into `out` if there is one.

        Returns the output, or (output, LSE) if `return_softmax_lse`. Raises InputError for an `output_scale`.
        """
        if output_scale is not None:
            raise InputError("vllm: output_scale is given, expected None: the output has q's dtype")
        new = self._prefill_metadata
        lengths = new.query_start_loc, new.query_start_loc, new.max_query_len, new.max_query_len
        found = self._attend(q, k, v, *lengths, causal=True, out=out)
        return found if return_softmax_lse else found[0]

    def run_prefill_context_chunk(
        self, chunk: Any, q: Tensor, k: Tensor, v: Tensor, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Computes attention of a chunk's queries to some of the keys before them, all of which they see.

        Returns (output, LSE). A request may have no keys in the chunk: its output is 0 then, and its LSE -inf.
        """
        lengths = chunk.query_start_loc, chunk.cu_seq_lens, chunk.max_query_len, chunk.max_seq_len
        return self._attend(q, k, v, *lengths, out=out)

    def _attend(self, *tensors_and_lengths: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """Computes attention of packed sequences, with the same bits in every batch if vLLM is asked for them."""
        # The LSE costs next to nothing, and kernels with it ship in a wheel (tools/wheel.yaml).
        options |= {"return_lse": True, "invariant": True if envs.VLLM_BATCH_INVARIANT else None}
        return attention_varlen(*tensors_and_lengths, scale=self.scale, **options)
