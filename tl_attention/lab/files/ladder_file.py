"""A ladder has schedules step by step, each one idea away from the step that it is measured against.

Beside them stand the figures of a text. `results/ladder-NAME.yaml` says what the steps are, and stands beside the
record of them; schedules that only a ladder has are in `schedules/ladders/NAME/`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticKnownError

from tl_attention import shipped
from tl_attention.errors import InputError
from tl_attention.problem.shape import DTYPE_NAMES, AttentionShape
from tl_attention.schedule.files import yaml_text
from tl_attention.schedule.files.named import Named, resolve_forward
from tl_attention.schedule.files.yaml_text import checked
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.key_words import meant

START, SUFFIX = "ladder-", ".yaml"


def _named(value: object) -> Named:
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    return resolve_forward(value)


def _problem(value: object, info: ValidationInfo) -> AttentionShape:
    """Parses the text of a ladder's `shape` as a problem, with the ladder's `dtype` and `causal`."""
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    dtype, causal = info.data.get("dtype", "fp16"), info.data.get("causal", False)
    return AttentionShape.parse(value, dtype=DTYPE_NAMES[dtype], causal=causal)


Text = Annotated[str, Field(min_length=1)]
Short = Annotated[str, Field(min_length=1, max_length=40)]
Figure = Annotated[float, Field(gt=0)]
Product = Literal["matmul", "mma_sync"]
OfSchedule = Annotated[Named, PlainValidator(_named)]
Problem = Annotated[AttentionShape, PlainValidator(_problem)]


class _Keys(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LadderStep(_Keys):
    """A LadderStep is one idea by which a published text made its kernel faster, and the schedule that applies it."""

    name: Short = Field(description="unique in the ladder")
    idea: Text = Field(description="what it adds, in a few words")
    schedule: OfSchedule | None = None  # None where the step has no meaning here, which `note` then says
    # The step that this one is measured against: unless given, the last one before it that has a schedule.
    against: str | None = None
    text: Figure | None = Field(None, description="the text's own figure")
    why: str = Field("", description="the lesson: what was in the way, and what the step does about it")
    note: str = Field("", description="what a reader must know: why there is no schedule, or no new code")


class LadderTile(_Keys):
    """A LadderTile is a schedule that is compiled but not timed, to show its registers beside published ones."""

    schedule: OfSchedule
    text: Text = Field(description="what the text has of it")


class Headline(_Keys):
    """A Headline quotes the result that a published text is known for, and names the step to show beside it."""

    step: str
    text: Text


def _in_order(steps: tuple[LadderStep, ...]) -> tuple[LadderStep, ...]:
    """Returns the steps, which must be right, with `against` filled in: by default the last with a schedule before."""
    found: list[LadderStep] = []
    for number, step in enumerate(steps):
        if any(step.name == earlier.name for earlier in found):
            said = f"{step.name!r} is the name of an earlier step, expected another"
            raise RuleBroken(said, "steps", number, "name")
        if step.schedule is None and not step.note:
            said = "a step without a schedule, expected a note that says why it has none"
            raise RuleBroken(said, "steps", number)
        measured = [earlier.name for earlier in found if earlier.schedule]
        if step.schedule and step.against is not None and step.against not in measured:
            known = ", ".join(measured) or "none: it is the first"
            said = f"{step.against[:40]!r} is no earlier step, expected one of {known}"
            raise RuleBroken(said, "steps", number, "against")
        against = (step.against or next(reversed(measured), None)) if step.schedule else None
        found.append(step.model_copy(update={"against": against}))
    return tuple(found)


class Ladder(_Keys):
    """A Ladder lists the steps by which a published text tuned its kernel, as schedules to measure side by side."""

    _name: str = ""
    title: Text
    source: Text = Field(description="who wrote what")
    link: str = Field("", description="Markdown: where the text or its code is, if that is known")
    story: Text = Field(description="what a student learns here")
    headline: Headline
    method: Text = Field(description="the card, problem and method of the text's figures")
    unit: Text = Field(description="of the text's figures")
    dtype: Literal["fp16", "bf16"] = "fp16"
    causal: StrictBool = False
    shape: Problem = Field(description="the problem here, as --shape has it")
    fixed: StrictBool = Field(False, description="compiled for exactly this problem, as the text's kernels")
    product: Product = Field("matmul", description="the plain product whose rate is 100 %")
    peers: dict[str, Figure | None] = Field({}, description="and the text's figure of each")
    steps: Annotated[tuple[LadderStep, ...], Field(min_length=2), AfterValidator(_in_order)]
    tiles: tuple[LadderTile, ...] = ()
    choose: StrictBool = Field(False, description="choose the fastest of the text's space of configurations")

    @model_validator(mode="after")
    def _has_its_headline(self) -> Ladder:
        name = self.headline.step
        if name not in [step.name for step in self.measured]:
            raise RuleBroken(f"{name[:40]!r} is no step that has a schedule", "headline", "step")
        return self

    @property
    def name(self) -> str:
        """Returns the ladder's name, which is its file's without `ladder-` and suffix."""
        return self._name

    @property
    def measured(self) -> tuple[LadderStep, ...]:
        """Returns the ladder's steps that have a schedule, which are those that are measured."""
        return tuple(step for step in self.steps if step.schedule)

    def step(self, name: str) -> LadderStep:
        """Returns the ladder's step of this name."""
        return next(step for step in self.steps if step.name == name)


def ladder_names() -> list[str]:
    """Returns the names of the ladders that ship, sorted."""
    return sorted(path.stem.removeprefix(START) for path in _root().glob(f"{START}*{SUFFIX}"))


def record_name(name: str) -> str:
    """Returns the name of the file in results/ that holds the shipped measurements of the ladder of this name."""
    return f"{START}{name}-h200.jsonl"


def load_ladder(name: str | Path) -> Ladder:
    """Reads the ladder of a file if the text ends in .yaml, else the ladder that ships under this name.

    Raises InputError with `file:line: key: message`.
    """
    text = str(name)
    path = Path(text) if text.endswith(SUFFIX) else _root() / f"{START}{text}{SUFFIX}"
    if not os.path.isfile(path):
        known = ladder_names()
        instead = meant(text, known, cutoff=0.7) or f", expected one of {', '.join(known)}, or a file"
        raise InputError(f"no ladder is named {text[:60]!r}{instead}")
    file = yaml_text.read(path)
    ladder = checked(file, Ladder, file.fields)
    ladder._name = path.stem.removeprefix(START)
    return ladder


def _root() -> Path:
    return shipped.folder("results")
