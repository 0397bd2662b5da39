"""`explain` says what a schedule takes of the SM, its options and chunks, and what is proved and refused."""

import json
import re

import pytest
from mutations import fitting_head_dim, shipped
from specialized import HUNDREDS, hundred

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.files.schema import json_schema
from tl_attention.lab.search.choices import choices
from tl_attention.lab.show.explain import explain
from tl_attention.program.planned import Planned
from tl_attention.schedule.options import OPTION_KEYS, OPTION_PATHS, words_of
from tl_attention.schedule.schedule import changed_options


def options(text: str) -> list[str]:
    """Returns the lines of options, with their marks."""
    return re.findall(r"^[* ] \w+\.\w+.*: .*$", text, re.MULTILINE)


@pytest.mark.parametrize("number", HUNDREDS)
def test_every_option_of_every_schedule_has_words(number) -> None:
    """Every option has words that is changed, or that the schedule's lowering takes."""
    for schedule in hundred(number):
        try:
            lines = options(explain(Planned(schedule)))
        except ScheduleRefused:
            continue
        changed = {path for path, _ in changed_options(schedule)} - {"kernel.registers"}
        assert changed <= {line.split()[0 if line[0] == " " else 1].rstrip(":") for line in lines}
        kept = [
            path for path in OPTION_PATHS if path.startswith(("kernel.", "softmax.")) and schedule.dialect.takes(path)
        ]
        assert len(lines) >= len(kept) - 1 and not [line for line in lines if line.endswith(": ")]
    assert not options(explain(Planned(shipped()["seed"])))


@pytest.mark.parametrize("key", OPTION_KEYS)
def test_every_value_of_every_option_has_words_and_every_option_a_description(key) -> None:
    options = type(getattr(shipped()["seed"], key))
    described = json.loads(json_schema())["$defs"][options.__name__]["properties"]
    for name, field in options.model_fields.items():
        assert len(described[name]["description"]) > 15
        values = choices(field) or ((16, 32), "exp")
        words = [words_of(field, value) for value in values]
        # setmaxnreg has a line of its own.
        assert all(words) == ((key, name) != ("kernel", "registers")), name
        assert len(set(words)) > 1 or (key, name) == ("kernel", "registers"), name


@pytest.mark.parametrize("name", shipped())
def test_the_sums_shown_are_those_that_the_limits_have(name) -> None:
    schedule = shipped()[name]
    head_dim = fitting_head_dim(name)
    text = explain(Planned(schedule), head_dim=head_dim).replace(",", "")
    takes = lowering_of(schedule).resources(Planned(schedule), head_dim)
    need, parts = re.search(r"shared memory: (\d+) of \d+ bytes: (.*)", text).groups()
    counted = re.sub(r"that hold the mbarriers|buffers|block_[MN]|head_dim", "", parts)
    assert eval(counted) == int(need) == takes.static_bytes + takes.shared_bytes
    total, fragments = re.search(r"registers: (\d+) of \d+ for fragments: (.*)", text).groups()
    assert sum(map(int, re.findall(r" (\d+)", f" {fragments}"))) == int(total) == takes.fragment_registers
