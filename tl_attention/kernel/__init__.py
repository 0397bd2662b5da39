"""The TileLang kernel. Only this folder and `compile.py` import tilelang."""
