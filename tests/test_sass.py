"""The machine code as the report reads it: small listings by hand, then kernels as ptxas makes them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from mutations import SCHEDULES, shipped

from tl_attention.build import sass
from tl_attention.build.compile import CompiledKernel, StaticReport, compile_kernel
from tl_attention.build.sass import Loop, check_not_serialised, describe, parse, steady
from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.files.schedule_file import load
from tl_attention.measure import compilation
from tl_attention.measure.candidate import Candidate
from tl_attention.measure.records import ResultsFile, Row, read_rows
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.asked_waits import Asked, asked_waits, asked_waits_of
from tl_attention.schedule.schedule import Schedule
from tl_attention.show.report import loop_lines

NAME = "fa3_overlap"
SCHEDULE = shipped()[NAME]
VARIANT = Variant(128, "float16")


def listing(*lines: str) -> str:
    """A disassembly as cuobjdump prints it; a line that ends in a colon is a label."""
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
    monkeypatch.setattr(sass, "files", lambda package: [])
    monkeypatch.setattr(sass.shutil, "which", lambda name: None)
    monkeypatch.setattr(sass.Path, "is_file", lambda path: False)
    with pytest.raises(InputError, match=f"{tool} was not found: install the package nvidia-cuda-{tool}"):
        sass.tool(tool)


# --- as ptxas makes it -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> CompiledKernel:
    return compile_kernel(SCHEDULE, VARIANT)


@pytest.fixture(scope="module")
def serialised(compiled) -> CompiledKernel:
    """The same kernel with accumulators touched while their products are in flight."""
    source, waits = re.subn(r"(tl::wait_wgmma<\d>)", r"acc_s[0] += 1.0f; acc_o[0] += 1.0f; \1", compiled.source)
    assert waits
    return replace(compiled, source=source)


def test_a_kernels_loop_has_the_instructions_that_its_tile_needs(compiled):
    loop = steady(compiled.report.loops)
    per_product = {"mma0": VARIANT.head_dim // 16, "mma1": SCHEDULE.block_N // 16}
    assert loop.hgmma == sum(per_product.values()) == 19
    scores = SCHEDULE.block_M * SCHEDULE.block_N // SCHEDULE.threads
    rescaled_rows = 2
    assert loop.exponentials == loop.counts["MUFU"] == scores + rescaled_rows == 90
    assert loop.spills == 0 and 500 < loop.instructions < 900
    assert loop.counts["FFMA"] >= scores and loop.counts["FMNMX"] >= scores
    # The first addition of a row is part of the FMA that scales the sum so far.
    assert loop.counts["FADD"] >= scores - rescaled_rows
    assert len(loop.product_waits) == 2 and len(loop.barrier_waits) >= 2 and len(loop.arrives) >= 2
    for places in (loop.product_waits, loop.barrier_waits, loop.arrives):
        assert list(places) == sorted(places) and 0 <= places[0] <= places[-1] <= 90
    assert "spills" in str(compiled.report) and "HGMMA" not in str(compiled.report)


EXACT = sorted((SCHEDULES / "experiments").rglob("*exact*.yaml"))


@pytest.mark.parametrize("path", EXACT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_wait_is_where_the_schedule_has_it(path):
    schedule = load(path)
    mask = CAUSAL if path.parent.name == "causal" else FULL
    loop = steady(compile_kernel(schedule, replace(VARIANT, mask=mask)).report.loops)
    # A thread has two rows and every fourth pair of columns; the two exponentials of scores_scale may come before.
    columns = schedule.split.exp[0]
    assert columns // 2 <= max(loop.product_waits) <= columns // 2 + 2
    # The buffer of V is released right there, to each block of the cluster; that of K before the exponentials.
    cluster = schedule.kernel.cluster
    assert all(place == 0 for place in loop.arrives[:cluster])
    assert all(0 <= place - max(loop.product_waits) <= 2 for place in loop.arrives[cluster:])


def test_the_release_is_where_the_schedule_has_it():
    options = load(SCHEDULES / "experiments/causal/waits_exact.yaml").model_dump()
    group = [list(names) for names in options["group"]]
    group[2] = ["max_prev", "max_init", "row_max", "max_merge", "scale", "exp.0", "exp.1", "exp.2", "row_sum", "logsum"]
    schedule = Schedule(
        **options | {"group": group, "split": {"exp": [32, 64, 32]}, "release_before": {"load_v": "exp.2"}}
    )
    loop = steady(compile_kernel(schedule, replace(VARIANT, mask=CAUSAL)).report.loops)
    assert 16 <= max(loop.product_waits) <= 18 and 48 <= loop.arrives[-1] <= 50


def test_products_that_ptxas_serialised_are_refused(serialised):
    with pytest.raises(ScheduleRefused, match="waits 19 times for 19 HGMMA"):
        serialised.report


def test_a_serialised_candidate_is_refused_not_broken(serialised, monkeypatch):
    monkeypatch.setattr(compilation, "compile_kernel", lambda schedule, variant: serialised)
    shape = AttentionShape(1, 2, 256, 256, 128)
    result = compilation.compile_candidate(Candidate(NAME, shape, SCHEDULE))
    assert result.status == "refused" and result.report is None and "serialised" in result.error


# --- as it is shown --------------------------------------------------------------------------------------------

LOOPS = (
    Loop(700, {"HGMMA": 16, "LDL": 2}, 66, (0, 9), (0, 0), (0, 9)),
    Loop(600, {"HGMMA": 16}, 66, (0, 12), (), (0, 12)),
)


def recorded(tmp_path, loops: Sequence[Loop]):
    problem = {"batch": 1, "heads": 2, "seq_q": 256, "seq_kv": 256, "head_dim": 128, "dtype": "float16", "causal": True}
    with ResultsFile(tmp_path / "rows.jsonl") as results:
        results.append(Row("seed", "label", "runtime", problem, "ok", loops=tuple(loops)))
    return results.path


def test_loops_are_recorded_and_rows_without_them_are_read(tmp_path):
    path = recorded(tmp_path, LOOPS)
    assert read_rows(path)[0].loops == LOOPS
    old = recorded(tmp_path / "old", ())
    assert "loops" not in json.loads(old.read_text()) and read_rows(old)[0].loops == ()


@pytest.mark.parametrize("options", [(), ("--markdown",)])
def test_a_report_shows_the_loops_that_it_is_asked_for(tmp_path, cli, options):
    path = recorded(tmp_path, LOOPS)
    shown = (
        "seed (runtime): steady loop: 600 instructions: 16 HGMMA, no spills in this loop\n"
        "    of 66 exponentials: waits for products after 0, 12; arrives after 0, 12\n"
        "seed (runtime): other loop: 700 instructions: 16 HGMMA, 2 LDL\n"
        "    of 66 exponentials: waits for products after 0, 9; waits on mbarriers after 0, 0; arrives after 0, 9\n"
    )
    assert shown in cli("report", path, "--loops", *options).stdout
    assert "HGMMA" not in cli("report", path, *options).stdout


def test_where_the_schedule_asks_for_its_waits_stands_beside_where_they_are():
    loop = Loop(600, {"HGMMA": 16}, 66, (0, 12), (), (0, 12))
    assert loop.places_beside(Asked(66, (0, 18))) == (
        "of 66 exponentials: waits for products after 0, 12 (the schedule asks: 0, 18); arrives after 0, 12"
    )
    # Two iterations in one body, code that waits for no product: there is no place to compare.
    assert "asks" not in loop.places_beside(Asked(33, (0, 9))) + Loop(9, {}, 66).places_beside(Asked(66, (0, 18)))


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
    assert asked_waits(Schedule(**best)) == Asked(2 + 88, (0, 2 + 24))
    assert asked_waits(Schedule(**best | {"wait_before": {}})) == Asked(90, (0, 90))
    # Exponentials 0, 4, 8, ... of a thread by polynomial: 6 of the first 24, 22 of 88.
    polynomial = {"exp2_polynomial": {"every": 4, "first": 0}}
    assert asked_waits(Schedule(**best | {"softmax": polynomial})) == Asked(2 + 66, (0, 2 + 18))
    # Products waited for where they are issued: MMA0, Rescale, MMA1, then the exponentials.
    assert asked_waits(shipped()["seed"]) == Asked(66, (0, 0))
    assert asked_waits(shipped()["source_order"]) == Asked(66, (0, 66))


def test_rows_whose_label_is_no_schedules_have_nothing_beside():
    assert asked_waits(load(SCHEDULES / "inferred.yaml")) is None
    assert asked_waits_of("cudnn") is None and asked_waits_of("pipelined_of_old") is None
    # Nothing can be derived from it any more.
    late = f"{load(SCHEDULES / 'best.yaml').label}~release_before.load_k=max_prev"
    assert Schedule.from_label(late) and asked_waits_of(late) is None


def test_a_static_report_is_one_line():
    assert str(StaticReport(168, 0, 1024, LOOPS)) == "168 registers, no spills, 1,024 bytes of shared memory"
