"""What pydantic or a rule objected to in a schedule, as one line that says what was expected and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tl_attention.schedule.key_words import KeyPath, shown
from tl_attention.schedule.unknown_key import meant, unknown


class RuleBroken(ValueError):
    """A rule between keys is broken.

    `key` is the path to blame, such as ("order", 2), and `others` are the other keys of the rule. A file that changes one
    of these blames it instead: `why` says then what is wrong. `advice` is what to do about `key`, and `offers` are values
    of keys that would work.
    """

    def __init__(
        self,
        reason: str,
        *key: str | int,
        others: tuple[KeyPath, ...] = (),
        why: str = "",
        advice: str = "",
        offers: Mapping[KeyPath, Any] | None = None,
    ):
        super().__init__(f"{reason}, {advice}" if advice else reason)
        self.reason, self.advice, self.why = reason, advice, why or reason
        self.key, self.others = key, others
        self.offers = offers or {}


def first_error(error: ValueError, model: type[BaseModel] | None = None) -> tuple[KeyPath, str]:
    """(key path, message) of what to mend first; `model` tells which keys there are."""
    details = getattr(error, "errors", None)
    if details is None:
        return getattr(error, "key", ()), str(error)
    # A mistyped key is also a missing one: the name that the file has is the one to show.
    return key_and_message(sorted(details(), key=lambda detail: detail["type"] != "extra_forbidden")[0], model)


def key_and_message(detail: Any, model: type[BaseModel] | None = None) -> tuple[KeyPath, str]:
    """(key path, message) of one of pydantic's objections."""
    key, cause = detail["loc"], detail.get("ctx", {}).get("error")
    if isinstance(cause, RuleBroken):
        return cause.key, str(cause)
    if detail["type"] == "missing":
        return key, "the key is missing"
    if detail["type"] == "extra_forbidden":
        return key, unknown(key, detail["input"], model)
    if detail["type"] == "statement":
        return key, detail["msg"]
    return key, f"{_expected(detail)}, found {shown(detail['input'])}{meant(detail['loc'], detail['input'], model)}"


def _expected(detail: dict[str, Any]) -> str:
    context = detail.get("ctx", {})
    words = {
        "int_type": "expected an integer",
        "int_parsing_size": "expected a smaller integer",
        "string_unicode": "expected text",
        "string_type": "expected text",
        "string_too_long": f"expected at most {context.get('max_length')} characters",
        "float_type": "expected a number, such as 8.0 or 1.0e-5",
        "bool_type": "expected true or false",
        "model_type": "expected a mapping of keys",
        "tuple_type": "expected a list",
        "too_short": f"expected at least {_entries(context.get('min_length'))}",
        "too_long": f"expected at most {_entries(context.get('max_length'))}",
        "greater_than": f"expected more than {context.get('gt', 0):g}",
        "greater_than_equal": f"expected at least {context.get('ge')}",
        "less_than_equal": f"expected at most {context.get('le')}",
        "multiple_of": f"expected a multiple of {context.get('multiple_of')}",
        "literal_error": f"expected {context.get('expected')}",
    }
    message = detail["msg"]
    return words.get(detail["type"], f"{message[:1].lower()}{message[1:]}")


def _entries(count: int | None) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
