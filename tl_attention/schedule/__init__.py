"""This room has the Schedule, the frozen description of one kernel: its keys, rules and files, and the loop's tables."""
