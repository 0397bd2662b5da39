"""Patterns here find values in the host's code, in the calls that make TMA descriptors and that launch."""


def slot(number: int, value: str, after: str) -> str:
    """Returns a pattern of an argument, up to its value, of the call with first argument `after`."""
    return rf"(v_ptr\) = {after};\n(?:(?!.*FunctionCall).*\n)*?.*\[{number}\]\.v_\w+\) = ){value};"


def argument(after: str, number: int, value: str, other: str) -> tuple[str, str]:
    """Returns a pattern of an argument of the call with first argument `after`, and what stands in its place."""
    return slot(number, value, after), rf"\g<1>{other};"


def address(after: str, number: int, value: str, other: str) -> tuple[str, str]:
    """Returns a pattern of an argument that is an address, which the code compares with NULL first, and what replaces it."""
    null = rf"(v_ptr\) = {after};\n(?:(?!.*FunctionCall).*\n)*?  if \(){value}( == NULL\) \{{\n"
    return null + rf"(?:.*\n)*?.*\[{number}\]\.v_ptr\) = ){value};", rf"\g<1>{other}\g<2>{other};"


def passed(number: int, value: str, other: str) -> tuple[str, str]:
    """Replaces an argument of the kernel "best": its pointers and sizes, then cluster, grid, block and shared memory."""
    return argument("Output", number, value, other)


def number(value: int) -> str:
    """Returns how the host's code writes a number."""
    return rf"\(\(int64_t\){value}\)"
