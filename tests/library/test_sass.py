"""The report reads machine code, small listings by hand; rows record its loops, beside where a schedule waits."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from mutations import SCHEDULES, shipped

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.lab.machine_code import sass
from tl_attention.lab.machine_code.sass import (
    Loop,
    StaticReport,
    check_not_serialised,
    code_name,
    describe,
    parse,
    steady,
)
from tl_attention.lab.measure.records import Row, read_rows
from tl_attention.lab.measure.results_file import ResultsFile
from tl_attention.lab.show.report import loop_lines
from tl_attention.program.asked_waits import AskedWaits, asked_waits, asked_waits_of
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.schedule import Schedule


def listing(*lines: str) -> str:
    """Makes a disassembly as cuobjdump prints it; a line that ends in a colon is a label."""
    code: list[str] = []
    labels: dict[str, int] = {}
    for line in lines:
        if line.endswith(":"):
            labels[line[:-1]] = 16 * len(code)
        else:
            code.append(line)
    for label, address in labels.items():
        code = [re.sub(rf"\b{label}$", f"0x{address:x}", line) for line in code]
    printed = [f"        /*{16 * n:04x}*/   {line} ;   /* 0x000f */\n /* 0x00c2 */" for n, line in enumerate(code)]
    return "\n".join(["        Function : attention_kernel", '   .headerflags @"EF_CUDA_SM90"', *printed])


def product(hgmma: int) -> list[str]:
    return ["WARPGROUP.ARRIVE", *["HGMMA.64x128x16.F32 R24, gdesc[UR20], R24"] * hgmma]


WAIT = "WARPGROUP.DEPBAR.LE gsb0, 0x0"
EXP = "MUFU.EX2 R5, R5"
TRY_WAIT = "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3+URZ], R4"
ARRIVE = "@P2 SYNCS.ARRIVE.TRANS64.A1T0 RZ, [UR11], RZ"
RETRY = [TRY_WAIT, "@!P0 NANOSLEEP.SYNCS 0x989680", "@!P0 SYNCS.PHASECHK.TRANS64 P0, [R3+URZ], R4"]


def one_loop(*lines: str) -> Loop:
    (loop,) = parse(listing(*lines))
    return loop


def test_instructions_are_counted_and_waits_placed_among_the_exponentials():
    loop = one_loop(
        "MOV R1, R2",
        "loop:",
        *product(4),
        "@!P1 MUFU.EX2 R5, R5",
        "MUFU.RCP R6, R6",
        "IMAD.MOV.U32 R7, RZ, RZ, R8",
        "@P1 MOV R7, R8",
        "UMOV UR4, 0x1",
        "IMAD R1, R2, R3, R4",
        WAIT,
        ARRIVE,
        EXP,
        "BAR.SYNC.DEFER_BLOCKING 0x1",
        "@!UP0 UIADD3 UR4, UR4, 0x1, URZ",
        "LDL R1, [R1]",
        WAIT,
        ARRIVE,
        "@!P1 BRA loop",
        "EXIT",
    )
    assert loop.counts == {"HGMMA": 4, "MUFU": 3, "MOV": 2, "UMOV": 1, "SYNCS": 2, "BAR": 1, "LDL": 1}
    assert (loop.instructions, loop.exponentials, loop.spills) == (20, 2, 1)
    assert (loop.product_waits, loop.arrives, loop.barrier_waits) == ((1, 2), (1, 2), ())


def test_code_behind_the_kernels_end_that_retries_a_wait_neither_counts_nor_makes_a_loop():
    loop = one_loop(
        *product(4),
        TRY_WAIT,
        "@!P0 BRA first",
        "back0:",
        *product(4),
        WAIT,
        EXP,
        "loop:",
        TRY_WAIT,
        "@!P0 BRA second",
        "back1:",
        *product(4),
        WAIT,
        EXP,
        "@!P1 BRA loop",
        "EXIT",
        "first:",
        *RETRY,
        "@!P0 BRA first",
        "BRA back0",
        "second:",
        *RETRY,
        "@!P0 BRA second",
        "BRA back1",
        "end:",
        "BRA end",
        "NOP",
    )
    assert (loop.instructions, loop.barrier_waits, loop.counts["HGMMA"]) == (10, (0,), 4)


def test_a_wait_that_retries_in_place_is_one_wait_of_the_loop_around_it():
    loop = one_loop(
        "loop:",
        EXP,
        "retry:",
        TRY_WAIT,
        "@!P0 BRA retry",
        "again:",
        *RETRY,
        "@!P0 BRA again",
        *product(4),
        WAIT,
        "@!P1 BRA skip",
        EXP,
        "skip:",
        ARRIVE,
        "BRA P2, loop",
        "EXIT",
    )
    assert (loop.instructions, loop.barrier_waits, loop.arrives) == (17, (1, 1), (2,))


def test_only_arrivals_are_arrivals_the_clusters_among_them():
    loop = one_loop(
        "loop:",
        *product(4),
        WAIT,
        "SYNCS.ARRIVE.TRANS64.RED.A0TR RZ, [R7+URZ], R6",
        EXP,
        "SYNCS.ARRIVE.TRANS64.RED.A1T0 RZ, [R4+URZ], RZ",
        EXP,
        "SYNCS.ARRIVE.TRANS64 RZ, [R7+URZ], R6",
        "@P0 BRA loop",
    )
    assert (loop.arrives, loop.counts["SYNCS"]) == ((1, 2), 3)


def test_the_steady_loop_is_the_shorter_one_with_most_products():
    masked = ["masked:", *product(8), "FSEL R1, R1, R2, P0", EXP, WAIT, "@P0 BRA masked"]
    unmasked = ["unmasked:", *product(8), EXP, WAIT, "@P0 BRA unmasked"]
    small = ["small:", *product(4), WAIT, "@P0 BRA small"]
    producer = ["producer:", TRY_WAIT, "@!P0 BRA producer", "UTMALDG.4D [UR8], [UR4]", "@P0 BRA producer"]
    loops = parse(listing("tiles:", "NOP", *masked, *unmasked, *small, "@P1 BRA tiles", "EXIT", *producer, "EXIT"))
    assert [loop.instructions for loop in loops] == [13, 12, 7], "the loop over tiles holds others"
    assert steady(loops) is loops[1]
    assert [text.split(":")[0] for text in describe(loops)] == ["steady loop", "other loop", "other loop"]
    assert describe(loops)[0] == (
        "steady loop: 12 instructions: 8 HGMMA, 1 MUFU, no spills in this loop\n"
        "    of 1 exponentials: waits for products after 1"
    )


def test_code_without_such_a_loop_has_none():
    straight = listing(*product(4), WAIT, "loop:", EXP, "@P0 BRA loop", "EXIT")
    assert parse(straight) == parse("") == () and steady(()) is None and describe(()) == []
    check_not_serialised(())


def test_a_wait_for_each_instruction_of_a_product_is_refused():
    once = one_loop("loop:", *product(4), WAIT, *product(1), WAIT, "@P0 BRA loop")
    check_not_serialised([once])
    each = one_loop("loop:", *[*product(1), WAIT] * 5, "@P0 BRA loop")
    with pytest.raises(ScheduleRefused, match="serialised the products: .* waits 5 times for 5 HGMMA"):
        check_not_serialised([once, each])


@pytest.mark.parametrize("tool", ["cuobjdump", "nvdisasm"])
def test_a_missing_tool_is_named_with_its_package(tool, monkeypatch):
    monkeypatch.setattr(sass, "packaged", lambda package, name: [])
    monkeypatch.setattr(sass.shutil, "which", lambda name: None)
    monkeypatch.setattr(sass.Path, "is_file", lambda path: False)
    with pytest.raises(InputError, match=f"{tool} was not found: install the package nvidia-cuda-{tool}"):
        sass.tool(tool)


def test_machine_code_is_named_by_its_words_alone() -> None:
    def text(function: str, control: str) -> str:
        word = "/* 0x0000000a00007a02 */"
        return f"Function : {function}\n        /*0000*/   MOV R1, c[0x0][0x28] ;   {word}\n    /* {control} */\n"

    one = code_name(text("attention_kernel", "0x000fc40000000f00"))
    assert re.fullmatch("[0-9a-f]{12}", one) and code_name(text("another", "0x000fc40000000f00")) == one
    # How long the next instruction waits is part of it.
    assert code_name(text("attention_kernel", "0x000fe40000000f00")) != one


# --- loops that are recorded and shown -------------------------------------------------------------------------------


LOOPS = (
    Loop(700, {"HGMMA": 16, "LDL": 2}, 66, (0, 9), (0, 0), (0, 9)),
    Loop(600, {"HGMMA": 16}, 66, (0, 12), (), (0, 12)),
)


def recorded(tmp_path, loops: Sequence[Loop]):
    problem = {"batch": 1, "heads": 2, "seq_q": 256, "seq_kv": 256, "head_dim": 128, "dtype": "float16", "causal": True}
    results = ResultsFile(tmp_path / "rows.jsonl")
    results.append(Row("seed", "label", "runtime", problem, "ok", loops=tuple(loops)))
    return results.path


def test_loops_are_recorded_and_rows_without_them_are_read(tmp_path):
    path = recorded(tmp_path, LOOPS)
    assert read_rows(path)[0].loops == LOOPS
    old = recorded(tmp_path / "old", ())
    assert "loops" not in json.loads(old.read_text()) and read_rows(old)[0].loops == ()


def test_the_loops_of_a_row_are_lines(tmp_path, cli):
    path = recorded(tmp_path, LOOPS)
    shown = (
        "seed (runtime): steady loop: 600 instructions: 16 HGMMA, no spills in this loop\n"
        "    of 66 exponentials: waits for products after 0, 12; arrives after 0, 12\n"
        "seed (runtime): other loop: 700 instructions: 16 HGMMA, 2 LDL\n"
        "    of 66 exponentials: waits for products after 0, 9; waits on mbarriers after 0, 0; arrives after 0, 9"
    )
    assert "\n".join(loop_lines(read_rows(path))) == shown
    assert "HGMMA" not in cli("report", path).stdout


def test_where_the_schedule_asks_for_its_waits_stands_beside_where_they_are():
    loop = Loop(600, {"HGMMA": 16}, 66, (0, 12), (), (0, 12))
    assert loop.places_beside(AskedWaits(66, (0, 18))) == (
        "of 66 exponentials: waits for products after 0, 12 (the schedule asks: 0, 18); arrives after 0, 12"
    )
    # Two iterations in one body, code that waits for no product: there is no place to compare.
    assert "asks" not in loop.places_beside(AskedWaits(33, (0, 9)))
    assert "asks" not in Loop(9, {}, 66).places_beside(AskedWaits(66, (0, 18)))


ROW = read_rows(SCHEDULES.parent / "results/experiments-h200.jsonl")


@pytest.mark.parametrize("row", [row for row in ROW if row.loops], ids=lambda row: row.name)
def test_an_iteration_asks_for_as_many_exponentials_as_the_machine_code_has(row):
    asked = asked_waits_of(row.label)
    loop = steady(row.loops)
    assert (asked.exponentials, len(asked.product_waits)) == (loop.exponentials, len(loop.product_waits))
    if Schedule.from_label(row.label).kernel.waits == "exact":
        # The two of scores_scale may come before or after.
        assert all(0 <= wanted - found <= 2 for wanted, found in zip(asked.product_waits, loop.product_waits))
    assert f"(the schedule asks: 0, {asked.product_waits[1]})" in loop_lines([row])[0]


def test_the_places_asked_for_follow_the_order_chunks_and_the_polynomial():
    best = load(SCHEDULES / "best.yaml").model_dump()
    assert asked_waits(Planned(Schedule(**best))) == AskedWaits(2 + 88, (0, 2 + 24))
    assert asked_waits(Planned(Schedule(**best | {"wait_before": {}}))) == AskedWaits(90, (0, 90))
    # Exponentials 0, 4, 8, ... of a thread by polynomial: 6 of the first 24, 22 of 88.
    polynomial = {"exp2_polynomial": {"every": 4, "first": 0}}
    assert asked_waits(Planned(Schedule(**best | {"softmax": polynomial}))) == AskedWaits(2 + 66, (0, 2 + 18))
    # Products waited for where they are issued: MMA0, Rescale, MMA1, then the exponentials.
    assert asked_waits(Planned(shipped()["seed"])) == AskedWaits(66, (0, 0))
    assert asked_waits(Planned(shipped()["source_order"])) == AskedWaits(66, (0, 66))


def test_rows_whose_label_is_no_schedules_have_nothing_beside():
    assert asked_waits(Planned(load(SCHEDULES / "inferred.yaml"))) is None
    assert asked_waits_of("cudnn") is None and asked_waits_of("pipelined_of_old") is None
    # Nothing can be derived from it any more.
    late = f"{load(SCHEDULES / 'best.yaml').label}~release_before.load_k=max_prev"
    assert Schedule.from_label(late) and asked_waits_of(late) is None


def test_a_static_report_is_one_line():
    assert str(StaticReport(168, 0, 1024, LOOPS)) == "168 registers, no spills, 1,024 bytes of shared memory"
