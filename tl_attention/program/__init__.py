"""A Program is the loop as a short list of operations, derived from a schedule. This room has a machine that runs it."""
