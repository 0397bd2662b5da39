"""Schedule: the frozen description of one kernel, its keys, its label, and the rules that it meets by itself."""
