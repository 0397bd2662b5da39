"""This package registers `attention` with PyTorch's SDPA, with Transformers and with vLLM, when it is asked to."""

# The kernels have this name in all registries.
NAME = "tl_attention"
