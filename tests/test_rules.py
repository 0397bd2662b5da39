"""Each rule between keys agrees with its JSON Schema, a lowering brings its own rules, and an unknown lowering is told."""

from __future__ import annotations

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from moves.space import listed_keys
from tiers import sampled

from tl_attention.errors import InputError
from tl_attention.files.named import resolve
from tl_attention.files.schedule_file import load
from tl_attention.files.schema import json_schema
from tl_attention.lowering.registry import lowering_of
from tl_attention.schedule import dialect
from tl_attention.schedule.dialect import Dialect, dialects
from tl_attention.schedule.key_errors import RuleBroken
from tl_attention.schedule.keys import Keys
from tl_attention.schedule.rules import KEYS_OF_ORDER, Rule, rules_of
from tl_attention.schedule.schedule import EXAMPLE_LABEL, Schedule

NAMES = ("seed", "inferred", "fa3_overlap", "best_causal", "mma_sync")
SAMPLES = (1500, 6000)


# What no list of choices has.
PLACES = (
    *(("split", {name: (32, 96)}) for name in ("row_sum", "mma0", "mma1")),
    *(("wait_before", {name: "exp"}) for name in ("mma0", "mma1", "load_k", "load_v")),
)


@cache
def chosen_from(name: str) -> list[tuple[tuple[str, ...], tuple[Any, ...]]]:
    return list(listed_keys(resolve(name).schedule))


def drawn(rng: random.Random) -> Keys:
    """Draws a shipped schedule with a few keys drawn anew; each key by itself may have its value."""
    base = rng.choice(NAMES)
    schedule = resolve(base).schedule
    fields = schedule.model_dump()
    changes = [(path, rng.choice(values)) for path, values in rng.sample(chosen_from(base), rng.randint(0, 2))]
    # Where a rule applies.
    conditions = [rule.given for rule in rules_of(schedule.dialect) if isinstance(rule, Rule)]
    changes += [(path.split("."), words["const"]) for path, words in rng.choice(conditions).items() if "const" in words]
    for (*above, name), value in changes:
        inside = fields
        for key in above:
            inside = inside[key]
        inside[name] = value
    if rng.random() < 0.2:
        fields["block_M"] = rng.choice((64, 192, 256))
    if rng.random() < 0.7:
        fields["threads"] = 2 * fields["block_M"]
    if rng.random() < 0.2:
        key = rng.choice(KEYS_OF_ORDER)
        fields[key] = rng.choice(((), getattr(resolve("seed").schedule, key)))
    if rng.random() < 0.2:
        key, value = rng.choice(PLACES)
        fields[key] = fields[key] | value
    if rng.random() < 0.1:
        fields["release_before"] = {"load_k": "exp"}
    return Keys(**fields)


def broken(keys: Keys) -> list[Rule]:
    """Returns the rules between keys that are broken, except rules that are functions."""
    found = []
    for rule in rules_of(keys.dialect):
        if isinstance(rule, Rule):
            try:
                rule(keys)
            except RuleBroken:
                found.append(rule)
    return found


@pytest.mark.parametrize("samples", sampled(SAMPLES, [1500]))
def test_the_schema_refuses_what_a_rule_refuses_and_takes_what_all_rules_take(samples, validator) -> None:
    def is_valid(keys: Keys) -> bool:
        return validator.is_valid(json.loads(keys.model_dump_json(exclude_defaults=True)))

    rng = random.Random(0)
    alone: Counter[Rule] = Counter()
    taken = 0
    for _ in range(samples):
        keys = drawn(rng)
        if rules := broken(keys):
            assert not is_valid(keys), keys
            alone.update(rules if len(rules) == 1 else ())
            continue
        try:
            schedule = Schedule(**keys.model_dump())
        except ValueError:
            continue
        taken += 1
        assert is_valid(schedule), keys
    every = {rule for dialect in dialects() for rule in rules_of(dialect) if isinstance(rule, Rule)}
    assert {rule.blamed for rule in every - alone.keys()} == set() and taken > samples / 12


THIRD = Dialect(
    "mma_sync",
    "every warp multiplies its own rows",
    model="synchronous",
    options=("softmax",),
    rules=(
        Rule("block_N", lambda s: f"{s.block_N}, expected at most 64: no swizzle", needs={"block_N": {"maximum": 64}}),
    ),
)


def test_a_third_lowering_brings_its_rules_its_options_and_its_schema(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(dialect._DIALECTS, THIRD.name, THIRD)
    validator = jsonschema.Draft202012Validator(json.loads(json_schema()))
    seed = yaml.safe_load(Path("schedules/seed.yaml").read_text()) | {"lowering": "mma_sync", "block_N": 64}
    for change, words in (
        ({}, None),
        # Its warps have rows of their own: the rule of wgmma is not its.
        ({"threads": 128}, None),
        ({"softmax": {"row_sum": "row"}}, None),
        ({"block_N": 80}, "block_N: 80, expected at most 64: no swizzle"),
        ({"group": []}, "group: missing or empty, lowering mma_sync needs it"),
        ({"kernel": {"cluster": 1}}, "kernel: only lowering warp_specialized takes it, remove it from lowering mma_s"),
        ({"lowering": "pipelined", "threads": 128}, "threads: 128 threads do not fit block_M 128"),
        ({"lowering": "pipelined", "softmax": {"row_sum": "row"}}, "softmax: only lowering warp_specialized or mma_s"),
    ):
        path = tmp_path / "third.yaml"
        path.write_text(yaml.safe_dump(seed | change))
        assert validator.is_valid(seed | change) == (words is None), change
        if words is None:
            assert Schedule.from_label(load(path).label) == load(path)
        else:
            with pytest.raises(InputError, match=f"third.yaml:[0-9]+: {words}"):
                load(path)
    key = validator.schema["properties"]["lowering"]
    assert "mma_sync: every warp multiplies its own rows" in key["description"]


KNOWN = "'pipelined', 'warp_specialized', 'mma_sync' or 'inferred'"


def test_an_unknown_lowering_is_told_with_the_known_ones(tmp_path, error_of) -> None:
    path = tmp_path / "fast.yaml"
    path.write_text("base: seed\nlowering: fast\n")
    assert error_of("check", path) == f"{path}:2: lowering: expected {KNOWN}, found 'fast'"
    label = EXAMPLE_LABEL.replace("pipelined", "fast")
    assert error_of("check", label) == f"label: {label!r}: lowering: expected {KNOWN}, found 'fast'"
    fields = resolve("seed").schedule.model_dump()
    for name in ("fast", None, [], "Pipelined"):
        with pytest.raises(ValueError, match=KNOWN):
            Schedule(**fields | {"lowering": name})
    # A copy is not checked: whoever asks for its lowering is told.
    unchecked = resolve("seed").schedule.model_copy(update={"lowering": "fast"})
    for ask in (lowering_of, lambda s: s.has_program):
        with pytest.raises(
            InputError, match="^lowering: 'fast' is none, expected one of pipelined, warp_specialized, mma_sync, i"
        ):
            ask(unchecked)
