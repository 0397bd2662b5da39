"""One line switches a Llama to the kernels. Its logits stay those of SDPA, and it generates tokens."""

from __future__ import annotations

import torch
from common import compare, on_a_gpu

from tl_attention import register_transformers


def main(device: str) -> None:
    # If Transformers is not installed, this call says how to install it.
    name = register_transformers()
    from transformers import LlamaConfig, LlamaForCausalLM

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 97}
    # The weights are random, and large enough to make the scores of a row differ.
    config = LlamaConfig(**heads, **sizes, initializer_range=0.1, pad_token_id=0, attn_implementation="sdpa")
    model = LlamaForCausalLM(config).to(device, torch.bfloat16).eval()
    tokens = torch.randint(1, 97, (2, 50), device=device)
    with torch.no_grad():
        expected = model(tokens).logits

        model.set_attn_implementation(name)

        # The difference is in standard deviations, after two layers in bf16.
        compare("logits", model(tokens).logits / expected.std(), expected / expected.std(), tolerance=0.1)
        prompt = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        longer = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    print(f"8 tokens more: {longer[0, 50:].tolist()}")


if __name__ == "__main__":
    on_a_gpu(main)
