"""This room reads what nvcc and ptxas make of a kernel: machine code, registers, spills, and what they say."""
