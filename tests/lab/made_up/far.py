"""A class has methods that do not run, and so has a table functions."""

from .near import base64

SCALE, NEVER = 3, 4


# A pair of numbers.
class Pair:
    """A Pair."""

    def __init__(self, first):
        self.first = first

    def never(self):
        return base64() + self.first

    def twice(self):
        return self.first * 2


def put(constants):
    return Pair(SCALE).twice()


def other(constants):
    return NEVER


def chosen(constants):
    return CHOICES[constants.dtype](constants)


def late(constants):
    from made_up.near import base64

    return base64()


CHOICES = {"float16": put, "bfloat16": other, "float32": late}
