"""A program as one text for one schedule, which reads as if it had been written for it.

A lowering names the modules of which its program consists: its `files`. Their text travels in a submission, specialised
for the arguments of the kernel: what they decide is decided, what is not used is gone, parameters included, and loops
over operations are written out. The contract of a module that travels:

- It imports TileLang's language as T, and SimpleNamespace. Names of modules that do not travel may only decide
  something, and are gone then. It has functions, constants, and classes whose instances are known; nothing else.
- What arguments decide is decided by `if`, conditional expressions, `and` and `or`, tables that are looked up by what
  is known, and `for` over tuples. A function that chooses a function is called where it is chosen.
- Its namespaces are made by SimpleNamespace(name=...). No function binds a name that is one of the program's. A call
  of one of its functions has no stars.
- Its docstring becomes a comment above what is left of it, a class's is left out. These, the docstrings of functions
  and the comments stand alone: they are true for every schedule that keeps what they belong to, and name neither files
  nor parameters that may be gone. A comment has lines of its own, above a statement. One above an `if` that is decided
  goes with it.
- T stands in decorators and in functions only: where there is no TileLang, the text is imported all the same.

`source` reads the modules, `fold` decides what is known, `calls` what is passed, `shake` drops what is not used,
`layout` writes down what is left.
"""
