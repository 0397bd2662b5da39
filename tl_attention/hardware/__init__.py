"""The cards that kernels are compiled for, and which GPU is at hand."""
