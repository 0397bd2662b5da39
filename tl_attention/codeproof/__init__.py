"""This package proves the code that TileLang generates: it reads the code, runs it, and compares what the code does."""
