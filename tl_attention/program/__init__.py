"""This room derives a Program, the loop as a short list of operations, from a schedule, runs it, and proves it safe."""
