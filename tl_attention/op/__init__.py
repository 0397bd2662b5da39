"""`attention(q, k, v)` for PyTorch: arguments checked, schedule chosen, kernel launched; operator, gradient; `merge`."""
