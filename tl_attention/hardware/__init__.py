"""This room has the cards that kernels are compiled for, and finds the GPU at hand."""
