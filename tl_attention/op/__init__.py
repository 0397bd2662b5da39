"""`attention(q, k, v)` for PyTorch: its arguments checked, its schedule chosen, its kernel launched; `merge` of parts."""
