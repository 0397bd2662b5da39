"""A space lists, in a YAML file that a person edits, the values that a search may choose for each key of a schedule."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from tl_attention.lab.search.choices import choices
from tl_attention.schedule.dialect import dialect_of, dialects
from tl_attention.schedule.files import yaml_text
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.key_words import shown, suggestion
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.loop.loops import CUT_SIZES
from tl_attention.schedule.options import MOST_CHUNKS, OPTIONS, Releases, Waits

DEFAULT = Path(__file__).with_name("space.yaml")
# The options of a schedule whose values a space lists, key by key.
LISTED = ("kernel", "softmax")
ALONE = ("kv_order", "block_M", "block_N", "num_stages")
Values = Annotated[tuple[Any, ...], Field(min_length=1)]
Most = Annotated[StrictInt, Field(ge=1, le=MOST_CHUNKS)]


class Space(BaseModel):
    """A Space has the values that a search may choose, each key's in a tuple.

    Keys that it does not list keep the default of `Schedule`; the threads follow from the row tile unless listed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    lowering: Annotated[Values, Field(max_length=1)] = ("warp_specialized",)
    kv_order: Values = ("ascending",)
    block_M: Values
    threads: Annotated[tuple[Any, ...], Field(description="null is twice block_M")] = ()
    block_N: Values
    num_stages: Values
    stages: Annotated[StrictInt, Field(ge=1, le=4, description="a statement lags by fewer than so many KV blocks")] = 1
    groups: Annotated[bool, Field(description="whether a statement may begin a group that its stage does not")] = False
    chunks: Annotated[dict[str, Most], Field(description="statements that may be cut, and into how many chunks")] = {}
    ahead: Annotated[dict[str, Values], Field(description="whether a load runs ahead, true unless given")] = {}
    wait_before: tuple[str, ...] = ()
    release_before: tuple[str, ...] = ()
    kernel: dict[str, Values] = {}
    softmax: dict[str, Values] = {}

    @model_validator(mode="after")
    def _has_what_a_schedule_has(self) -> Space:
        _refuse_unknown(self.lowering, [dialect.name for dialect in dialects()], "lowering")
        for key in ALONE:
            _refuse_unknown(getattr(self, key), choices(Keys.model_fields[key]), key)
        for key in LISTED:
            fields = OPTIONS[key].model_fields
            for name, values in getattr(self, key).items():
                _refuse_unknown([name], fields, key)
                _refuse_unknown(values, [*map(plain, choices(fields[name]))], key, name)
        _refuse_unknown(self.threads, (None, *choices(Keys.model_fields["threads"])), "threads")
        _refuse_unknown(self.chunks, CUT_SIZES, "chunks")
        _refuse_unknown(self.wait_before, Waits.model_fields, "wait_before")
        _refuse_unknown(self.release_before, Releases.model_fields, "release_before")
        return self

    @property
    def keys(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of each key of a schedule that has one value, by the key's path such as kernel.cluster."""
        options = {f"{key}.{name}": values for key in LISTED for name, values in getattr(self, key).items()}
        return {key: values for key in ("lowering", *ALONE, "threads") if (values := getattr(self, key))} | options


def plain(value: Any) -> Any:
    """Returns a key's value as YAML has it: a list for a tuple, a dict of what is not the default for a model."""
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_defaults=True)
    return [*value] if isinstance(value, tuple) else value


def _refuse_unknown(values: Any, known: Any, *path: str) -> None:
    """Raises RuleBroken for the first value that is not among those that are known, where any is."""
    for value in values:
        if known and not any(value == one and type(value) is type(one) for one in known):
            expected = suggestion(str(value), [*map(str, known)]) or f"expected one of {', '.join(map(shown, known))}"
            raise RuleBroken(f"{shown(value)} is no value, {expected}", *path)


def read(path: Path = DEFAULT) -> Space:
    """Reads a space from its file. Raises InputError with file, line and key for what it cannot be."""
    file = yaml_text.read(path)
    return yaml_text.checked(file, Space, file.fields)


@functools.cache
def whole(lowering: str) -> Space:
    """Returns the space of all schedules of a lowering: every value of every key that it takes."""
    dialect = dialect_of(lowering)
    listed = {
        key: {name: [*map(plain, choices(field))] for name, field in OPTIONS[key].model_fields.items()}
        for key in LISTED
    }
    return Space(
        lowering=(lowering,),
        **{key: choices(Keys.model_fields[key]) for key in ALONE},
        threads=(None, *choices(Keys.model_fields["threads"])),
        stages=4,
        groups=True,
        chunks={name: MOST_CHUNKS for name in CUT_SIZES if dialect.takes(f"split.{name}")},
        ahead=dict.fromkeys(dialect.table.loads, (True, False)),
        wait_before=tuple(name for name in Waits.model_fields if dialect.takes(f"wait_before.{name}")),
        release_before=tuple(name for name in Releases.model_fields if dialect.takes(f"release_before.{name}")),
        **{
            key: {name: values for name, values in of.items() if values and dialect.takes(f"{key}.{name}")}
            for key, of in listed.items()
        },
    )
