"""A measurement that is no command of tl-attention has a module here; `tools/measure.py` runs it."""
