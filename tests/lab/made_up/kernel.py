"""The kernel imports modules as a whole, and names as others."""

import operator as numbers
from math import floor as whole

import tilelang.language as T

import made_up.near
from made_up import far
from made_up.far import SCALE, chosen
from made_up.near import put as write


@T.macro
def launch(given, constants):
    with T.Kernel(1, threads=32):
        value = chosen(constants) + far.put(constants) + made_up.near.base64() + numbers.add(SCALE, whole(1.5))
        write(given.Output, value)
        if constants.strided:
            absent(given)


@T.macro
def absent(given):
    write(given.Output, far.NEVER)
