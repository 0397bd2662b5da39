"""A kernel that is no attention is written with all that Python has to import names."""
