"""This room compiles a TileLang program, reads what the compilers make, and stores finished kernels on disk."""
