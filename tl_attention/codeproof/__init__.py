"""This room proves the code that TileLang generates: it reads and runs the code, and compares that with the Program."""
