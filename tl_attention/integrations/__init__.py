"""Other libraries' registries of attentions: PyTorch's SDPA and Transformers, each told of `attention` when asked to."""

# What the kernels are called in all of them.
NAME = "tl_attention"
