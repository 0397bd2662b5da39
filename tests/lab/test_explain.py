"""`explain` says what a schedule takes of the SM, its options and chunks, and what is proved and refused."""

import json
import re

import pytest
from mutations import SCHEDULES, fitting_head_dim, shipped
from specialized import CHUNKED, HUNDREDS, REST, TWO, fa3, hundred

from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.files.schema import json_schema
from tl_attention.lab.search.choices import choices
from tl_attention.lab.show.explain import explain
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.options import OPTION_KEYS, OPTION_PATHS, words_of
from tl_attention.schedule.schedule import changed_options


def options(text: str) -> list[str]:
    """Returns the lines of options, with their marks."""
    return re.findall(r"^[* ] \w+\.\w+.*: .*$", text, re.MULTILINE)


def marked(text: str) -> set[str]:
    return {line.split()[1].rstrip(":") for line in options(text) if line.startswith("*")}


def test_every_option_in_force_is_shown_and_those_of_the_file_are_marked() -> None:
    text = explain(Planned(load(SCHEDULES / "best_causal.yaml")))
    assert options(text) == [
        "  kernel.k_stages: K_shared has num_stages buffers",
        "* kernel.v_stages 3: buffers of V_shared",
        "* kernel.tile_scheduler dynamic: persistent, the next row tile comes from a counter in global memory",
        "* kernel.tile_order tapered: row tiles of the last heads from the longest to the shortest, to end with these; packed ones always are",
        "  kernel.blocks_per_sm 1: a thread block has an SM to itself",
        "* kernel.cluster 1: no cluster, every thread block loads its own K and V",
        "  kernel.rows_of head: a row tile has rows of one head",
        "  kernel.part_blocks: a row tile takes all of its keys",
        "* kernel.ping_pong true: the two warpgroups take turns to issue their products",
        "  kernel.q_operand shared: MMA0 reads Q from shared memory",
        "  kernel.p_operand registers: MMA1 reads P from registers",
        "  kernel.output vector: lanes exchange the output and store 16 bytes each",
        "  kernel.waits loose: a product's wait stays behind the last exponential of the chunk before it in the order",
        "  softmax.fused_scale true: the scale is part of the exponent's FMA",
        "* softmax.row_max thread: row_max goes on from the row's maximum so far in every thread",
        "  softmax.row_sum thread: row_sum is summed per thread and reduced once after the loop",
        "  softmax.rescale_threshold 0.0: a row takes every new maximum, and its acc_o is rescaled",
        "  softmax.exp2_polynomial: every exponential by MUFU.EX2",
        "* split.exp: in chunks of 32 + 96 columns",
        "* split.row_sum: in chunks of 32 + 96 columns",
        "* wait_before.mma1 exp.1: waited for before exp.1, no later",
    ]
    assert "buffers: K_shared 2, V_shared 3" in text


def test_a_default_that_the_file_sets_is_marked_too() -> None:
    """best.yaml says that it has a cluster of two; fa3_overlap has one because that is the default."""
    best, overlap = (explain(Planned(load(SCHEDULES / f"{name}.yaml"))) for name in ("best", "fa3_overlap"))
    words = "kernel.cluster 2: two thread blocks of neighbouring row tiles share each load of K and V"
    assert f"* {words}" in options(best) and f"  {words}" in options(overlap)
    assert marked(overlap) == set()


def test_options_with_values_of_their_own_are_said_in_words() -> None:
    text = explain(
        Planned(
            fa3(
                *CHUNKED,
                split=TWO,
                wait_before={"mma1": "exp.1"},
                release_before={"load_k": "exp.1"},
                kernel={"registers": (232, 40), "k_stages": 3},
                softmax={"rescale_threshold": 8, "exp2_polynomial": {"every": 4, "first": 2}},
            )
        )
    )
    assert {line.partition(": ")[2] for line in options(text) if line.startswith("*")} == {
        "buffers of K_shared",
        "a row keeps its maximum, and its acc_o, until it would grow by more than 2^8",
        "1 in 4 exponentials of a thread, from its exponential 2 on, by a polynomial of degree 3 on the FMA units, the "
        "others by MUFU.EX2",
        "in chunks of 48 + 128 columns",
        "waited for before exp.1, no later",
        "K_shared is released before exp.1, no earlier",
    }
    assert "\nsetmaxnreg: 232 for threads that compute, 40 for the producer's, by the file\n" in text


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


RESOURCES = {
    ("best", 128): """
tile: 128 queries x 176 keys, head_dim 128
threads: 256 compute, 128 for each 64 rows; 128 more for the producer, of which one warp loads
shared memory: 214,016 of 232,448 bytes: 1,024 that hold the mbarriers + (block_M 128 + (2 + 2 buffers) * block_N 176) \
* head_dim 128 * 2
mbarriers: 12, a full and an empty one for each of 2 of Q, 2 of K, 2 of V
registers: 206 of 240 for fragments: acc_s 88, acc_s_cast 44, acc_o 64, row vectors 10
setmaxnreg: 240 for threads that compute, 24 for the producer's, by block_M
""",
    ("seed_64x128", 64): """
tile: 64 queries x 128 keys, head_dim 64
threads: 128 compute, 128 for each 64 rows, and load
shared memory: 73,728 of 232,448 bytes: (block_M 64 + (2 + 2 buffers) * block_N 128) * head_dim 64 * 2
registers: 138 of 255 for fragments: acc_s 64, acc_s_cast 32, acc_o 32, row vectors 10

""",
}


@pytest.mark.parametrize("name, head_dim", RESOURCES)
def test_what_a_schedule_takes_of_the_sm_is_shown_with_what_there_is(name, head_dim) -> None:
    assert RESOURCES[name, head_dim] in explain(Planned(resolve(name).schedule), head_dim=head_dim)


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


def test_explain_says_what_is_proved_and_then_what_is_refused(cli) -> None:
    """`check` refuses seed_stages4 at head_dim 128: its Program is proved, but its tile does not fit."""
    refused = cli("explain", "seed_stages4", "--head-dim", 128)
    assert refused.exit_code == 2 and "Steady state" in refused.stdout and "shared memory: 294,912 of" in refused.stdout
    assert refused.stdout.endswith("\n\nproved: every read sees the value that source order gives it\n")
    assert "refused: num_stages: needs 294,912 bytes of shared memory, the SM has 232,448" in refused.stderr
    fits = cli("explain", "seed_stages4", "--head-dim", 64)
    assert fits.exit_code == 0 and fits.stdout.endswith("\nfits the SM at head_dim 64\n") and not fits.stderr


def test_explain_is_for_the_head_sizes_that_the_file_is_meant_for_unless_another_is_asked_for(cli) -> None:
    stages4 = cli("explain", "seed_stages4")
    assert stages4.exit_code == 0 and stages4.stdout.endswith("\nfits the SM at head_dim 64\n")
    inferred = cli("explain", SCHEDULES / "inferred.yaml")
    assert inferred.exit_code == 0 and "proved" not in inferred.stdout and ", head_dim 128\n" in inferred.stdout
    assert inferred.stdout.endswith("\n\nfits the SM at head_dim 64\nfits the SM at head_dim 128\n")


def test_chunks_waits_and_releases_are_shown_where_they_stand() -> None:
    text = explain(Planned(fa3(*CHUNKED, split=TWO, wait_before={"mma1": "exp.1"}, release_before={"load_k": "exp.1"})))
    assert (
        """
  run      mask(t) of a boundary block, row_max(t), scale(t), exp.0(t)
  hold     exp.0(t), its last exponential
  wait     mma1(t-1), 0 later in flight
  release  load_v(t-1)
  release  load_k(t)
  run      exp.1(t), row_sum(t), cast(t), rescale(t)
"""
        in text
    )


def test_the_model_is_the_lowerings_own() -> None:
    assert "\nasynchronous model: " in explain(Planned(fa3(*REST)))
    assert "\nsynchronous model: " in explain(Planned(shipped()["seed"]))
