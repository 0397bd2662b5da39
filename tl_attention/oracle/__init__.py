"""An oracle is what the kernels are compared with: attention in fp64, and the Program run on the CPU."""
