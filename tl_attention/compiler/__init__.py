"""From a TileLang program to machine code: the compilers, and what can be read off what they make."""
