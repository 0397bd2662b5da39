"""A Schedule is the frozen description of one kernel: this room has its keys, its label and the rules between keys."""
