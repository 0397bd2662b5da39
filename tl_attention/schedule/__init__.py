"""This room has the Schedule, the frozen description of one kernel: its keys, rules, files, and the loop's tables."""
