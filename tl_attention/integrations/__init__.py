"""Other libraries' registries of attentions: PyTorch's SDPA and Transformers, each told of `attention` when asked to."""
