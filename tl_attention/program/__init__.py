"""The Program: the loop as a short list of operations, derived from a schedule, and a machine that runs it."""
