"""Why generated code is refused, on the way to the refusal."""


class Unsafe(Exception):
    """What generated code does wrong, in words."""
