"""Measurements that are no command of tl-attention, a module for each; `tools/measure.py` runs them."""
