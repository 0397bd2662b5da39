"""A function has the name of one in far.py, and one that of a module that the packed file imports."""

import tilelang.language as T


@T.macro
def put(Output, value):
    Output[0, 0, 0, 0] = value


def base64():
    return 5
