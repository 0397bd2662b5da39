"""Where values stand in the host's code: patterns of the calls that make TMA descriptors and that launch."""

from __future__ import annotations


def slot(number: int, value: str, after: str) -> str:
    """An argument of the call whose first is `after`, up to its value."""
    return rf"(v_ptr\) = {after};\n(?:(?!.*FunctionCall).*\n)*?.*\[{number}\]\.v_\w+\) = ){value};"


def argument(after: str, number: int, value: str, other: str) -> tuple[str, str]:
    """An argument of that call, and what stands in its place."""
    return slot(number, value, after), rf"\g<1>{other};"


def address(after: str, number: int, value: str, other: str) -> tuple[str, str]:
    """The same for an argument that is an address, which is compared with NULL first."""
    null = rf"(v_ptr\) = {after};\n(?:(?!.*FunctionCall).*\n)*?  if \(){value}( == NULL\) \{{\n"
    return null + rf"(?:.*\n)*?.*\[{number}\]\.v_ptr\) = ){value};", rf"\g<1>{other}\g<2>{other};"


def passed(number: int, value: str, other: str) -> tuple[str, str]:
    """An argument of the kernel "best": its pointers and sizes, then cluster, grid, block and shared memory."""
    return argument("Output", number, value, other)


def number(value: int) -> str:
    """How a number is written there."""
    return rf"\(\(int64_t\){value}\)"
