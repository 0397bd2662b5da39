"""What a submission's process may say: JSON of plain values, each of a stated type and range.

The submission can write to the same socket, so anything else ends its test, and nothing here is taken for a verdict.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tl_attention.errors import printable

MAX_BYTES = 65_536
# Of the timed runs, so that a message of them stays below MAX_BYTES: a float takes at most 25 characters.
MAX_SAMPLES = 1000
DTYPE = "torch.float16"
DEVICE_NAMES = {"cuda": "cuda:0", "cpu": "cpu"}

Name = Annotated[str, Field(max_length=80)]
Positive = Annotated[float, Field(gt=0)]


class Ended(Exception):
    """A process's end before its time: `status` is error, crash or timeout, the message one printable line."""

    def __init__(self, status: str, reason: str):
        super().__init__(one_line(reason))
        self.status = status


class _Plain(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Output(_Plain):
    """What the submission returned: its type's name and, of a tensor, shape, dtype and device; and MiB kept."""

    type: Name
    shape: Annotated[tuple[int, ...], Field(max_length=64)]
    dtype: Name
    device: Name
    kept_mib: float | None

    def refusal(self, shape: tuple[int, ...], device: str) -> str:
        """Why this is no output to compare, "" if it may be one."""
        if not self.dtype:
            return one_line(f"custom_kernel returned {self.type}, expected a tensor")
        for name, expected in (("shape", shape), ("dtype", DTYPE), ("device", DEVICE_NAMES[device])):
            if getattr(self, name) != expected:
                return one_line(f"the output's {name} is {getattr(self, name)}, expected {expected}")
        return ""


class Timed(_Plain):
    """The timed runs in milliseconds, and the seconds since the first began."""

    samples_ms: Annotated[tuple[Positive, ...], Field(min_length=1, max_length=MAX_SAMPLES)]
    elapsed_s: Positive


class Failed(_Plain):
    """An exception, in one line. May stand for any other message."""

    kind: Literal["failed"]
    reason: Annotated[str, Field(max_length=300)]


class Imported(_Plain):
    """The first import went well."""

    kind: Literal["imported"]


class First(_Plain):
    """The first call's output is written, and the process waits to be told to go on."""

    kind: Literal["first"]
    output: Output


class Second(_Plain):
    """The output for the second inputs is written; `timed` is null in test mode. The process has no more to do."""

    kind: Literal["second"]
    output: Output
    timed: Timed | None


Message = TypeVar("Message", Imported, First, Second)
_ANY = TypeAdapter(Annotated[Failed | Imported | First | Second, Field(discriminator="kind")])


def read(data: bytes, expected: type[Message]) -> Message:
    """The message, which must be of the expected kind. Raises Ended: the exception that it tells, or what is wrong."""
    try:
        message = _ANY.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "document"
        raise Ended("error", f"no valid message from the process: {where}: {first['msg']}") from None
    if isinstance(message, Failed):
        raise Ended("error", message.reason)
    if not isinstance(message, expected):
        wanted = expected.__name__.lower()
        raise Ended("error", f"no valid message from the process: {message.kind!r}, expected {wanted!r}")
    return message


def one_line(text: str) -> str:
    """Printable, in one line of at most 300 characters, whatever it was made of: it goes to line protocols."""
    return printable(" ".join(text.split()))[:300]
