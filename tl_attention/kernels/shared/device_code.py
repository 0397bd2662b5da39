"""CUDA device functions do what TileLang cannot say; they stand before the kernels that call them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tl_attention.problem.variant import Variant


class DeviceCode(NamedTuple):
    """A DeviceCode is the CUDA text of device functions, with words on them."""

    about: str  # what they are for
    text: str  # all that a kernel gets

    def behind(self, other: DeviceCode) -> DeviceCode:
        """Returns this code with the other's text before its own."""
        return DeviceCode(self.about, other.text.rstrip("\n") + self.text)

    def replaced(self, about: str, *pairs: tuple[str, str]) -> DeviceCode:
        """Returns the code with texts replaced by others, one pair after another, and with `about` of its own."""
        text = self.text
        for old, new in pairs:
            text = text.replace(old, new)
        return DeviceCode(about, text)


def read_device_code(module: str, name: str) -> DeviceCode:
    """Returns the DeviceCode of a file in the folder `device` beside a module, whose `__file__` is given.

    Its first comment, which ends with an empty line, is what it is for.
    """
    text = Path(module).with_name("device").joinpath(f"{name}.cuh").read_text("utf-8")
    end = text.index("\n\n") + 1
    about = "\n".join(line.removeprefix("// ") for line in text[:end].splitlines())
    return DeviceCode(about, text[end:])


STORE = read_device_code(__file__, "store")
STRIDED_STORE = STORE.replaced(
    "Rows of a strided output are as far apart as its stride says.",
    ("int rows)", "int rows, int64_t row_stride)"),
    ("head_dim / 8)", "row_stride / 8)"),
)
STORE_LSE = read_device_code(__file__, "store_lse")
EXPONENTIALS = read_device_code(__file__, "exponentials")
SOFTCAP = read_device_code(__file__, "softcap").behind(EXPONENTIALS)
SOFTCAP_BY_ROW = read_device_code(__file__, "softcap_by_row").behind(EXPONENTIALS)

# The functions that change all scores of a thread, by the parameter of their feature.
ON_SCORES = {"softcap": "tl_attention_cap"}


def prelude(device_code: Iterable[DeviceCode]) -> str:
    """Returns the CUDA text that stands before a kernel with this device code."""
    return "".join(code.text for code in device_code)


def code_of_totals(variant: Variant) -> list[DeviceCode]:
    """Returns the device functions of the features that act on the rows' totals."""
    return [STORE_LSE] if "LSE" in variant.acting else []


def code_of_features(variant: Variant) -> list[DeviceCode]:
    """Returns the device functions of all features; in an invariant kernel a softcap is computed row by row."""
    softcap = SOFTCAP_BY_ROW if variant.invariant else SOFTCAP
    return [*([softcap] if "softcap" in variant.acting else []), *code_of_totals(variant)]


def is_bf16(c: Any) -> str:
    """Returns the text "true" if the kernel's dtype is bfloat16, else "false", for C++ templates."""
    return "true" if c.dtype == "bfloat16" else "false"
