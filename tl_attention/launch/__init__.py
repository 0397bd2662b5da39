"""This room launches finished kernels: by their machine code, and a plan of what the host passes."""
