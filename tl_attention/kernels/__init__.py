"""This room makes a TileLang kernel of a Program: each lowering has a folder here, and `shared/` is for all of them.

Kernels begin with `import tilelang`; everything else imports it late.
"""
