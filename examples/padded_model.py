"""A padded batch of prompts runs on the kernels without its padding, in a Gemma-2 that one line switches to them."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import register_transformers


def main(device: str) -> None:
    # If Transformers is not installed, this call says how to install it.
    name = register_transformers()
    from transformers import Gemma2Config, Gemma2ForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "vocab_size": 97,
        "sliding_window": 16,
    }
    config = Gemma2Config(**heads, **sizes, initializer_range=0.1, pad_token_id=0, attn_implementation="eager")
    model = Gemma2ForCausalLM(config).to(device, torch.bfloat16).eval()
    tokens = torch.randint(1, 97, (3, 50), device=device)
    mask = torch.ones_like(tokens)
    mask[1, :30] = mask[2, :49] = 0  # of the second prompt 20 tokens count, of the third one
    with torch.no_grad():
        expected = model(tokens, attention_mask=mask).logits[mask.bool()]

        model.set_attn_implementation(name)

        logits = model(tokens, attention_mask=mask).logits[mask.bool()]
    # The difference is in standard deviations, after two layers in bf16.
    compare("logits", logits / expected.std(), expected / expected.std(), tolerance=0.1)


if __name__ == "__main__":
    on_a_gpu(main)
