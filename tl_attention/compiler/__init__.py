"""This package compiles a TileLang program to machine code, and reads what the compilers make."""
