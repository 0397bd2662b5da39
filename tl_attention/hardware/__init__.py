"""What the kernels may use of a Hopper GPU, and which GPU is at hand."""
