"""This room has what kernels are compared with: attention in fp64, the error budget, and the Program run on the CPU."""
