"""The model of an SM: it reads machine code, runs warps against each other, and says of a kernel how long it takes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from itertools import repeat
from types import SimpleNamespace

import measure
import pytest
import simpy
from click.testing import CliRunner
from conftest import ROOT
from measurements import probes
from measurements.calibration import MEASURED, calibrated, text
from model_code import in_store
from tiers import exhaustive

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.lab.cli import main
from tl_attention.lab.measure.candidate import Candidate
from tl_attention.lab.model import machine as machines
from tl_attention.lab.model import prediction
from tl_attention.lab.model.barrier import Meeting, SimulatedBarrier
from tl_attention.lab.model.grid import Grid
from tl_attention.lab.model.instructions import loops, read
from tl_attention.lab.model.machine import NUMBERS, Machine
from tl_attention.lab.model.prediction import predict
from tl_attention.lab.model.sm import Quarter
from tl_attention.lab.model.steps import WarpMark, WarpStep, step, tile_code
from tl_attention.lab.model.warp import Account
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.shape import AttentionShape
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.named import resolve

H200 = machines.load("h200")
# A machine on which an instruction takes a cycle and nothing disturbs anything.
ONE = ("fma", "fma_beside", "slot_beside", "alu_beside", "mufu_beside", "stall_beside")
OF_PRODUCTS = {"wgmma_columns": 2.0, "wgmma_issue_columns": 64.0, "wgmma_queue": 4.0}
EVEN = replace(H200, **dict.fromkeys(NUMBERS, 0.0) | dict.fromkeys(ONE, 1.0) | OF_PRODUCTS)


def word(stall: int, write: int = 7, read: int = 7, waits: Iterable[int] = ()) -> str:
    """Returns the upper word of an instruction that tells its warp's scheduler this."""
    control = stall | 1 << 4 | write << 5 | read << 8 | sum(1 << n for n in waits) << 11
    return f"0x{control << 41:016x}"


def code(*lines: tuple[str, str]) -> str:
    """Returns a disassembly of (instruction, upper word) lines."""
    return "".join(
        f"        /*{16 * n:04x}*/                   {text} ;         /* 0x{n:016x} */\n"
        f"                                                 /* {upper} */\n"
        for n, (text, upper) in enumerate(lines)
    )


def steps(*lines: tuple[str, str], machine: Machine = EVEN) -> list[WarpStep]:
    return [step(instruction, machine) for instruction in read(code(*lines))]


def ran(warps: Iterable[list[WarpStep | WarpMark]], machine: Machine = EVEN) -> list[Account]:
    """Returns the accounts of warps that ran against each other and met nobody, each with a mark at its end."""
    quarter = Quarter(machine)
    for n, of_warp in enumerate(warps):
        # A mark with two words is no tile.
        quarter.env.process(quarter.warp((0, n), [*of_warp, WarpMark(END)], lambda kind: None, repeat("mma")))
    quarter.env.run()
    return [*quarter.accounts.values()]


def ends(warps: Iterable[list[WarpStep | WarpMark]], machine: Machine = EVEN) -> list[float]:
    return [account.marks[END] for account in ran(warps, machine)]


FFMA = ("FFMA R0, R1, R2, R3", word(1))
PROBES_FOLDER = ROOT / "results/probes"
END, MET, ISSUED = ("end", ""), ("met", ""), ("issued", "")
WGMMA = ("HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0", word(1))
WAITED = ("WARPGROUP.DEPBAR.LE gsb0, 0x0", word(2))


def test_an_instruction_tells_its_scheduler_stall_and_scoreboards() -> None:
    [found] = read(code(("@!P0 MUFU.EX2 R7, R6", word(8, write=1, waits=(0, 5)))))
    assert (found.predicate, found.name, found.stall, found.write, found.read, found.waits) == (
        "!P0",
        "MUFU",
        8,
        1,
        None,
        (0, 5),
    )


def test_loops_are_those_with_products_from_outside_in() -> None:
    text = code(
        FFMA, WGMMA, ("@P0 BRA 0x10", word(5)), FFMA, ("@P1 BRA 0x0", word(5)), FFMA, ("@P2 BRA 0x50", word(5)),
        ("EXIT", word(5)), ("BRA 0x30", word(5)),
    )  # fmt: skip
    assert [(loop.first, loop.end) for loop in loops(read(text))] == [(0, 5), (1, 3)]
    tile = tile_code(read(text), EVEN)
    assert tile.again and [len(section) for section in tile.sections] == [1, 2, 2]


def test_a_warp_issues_after_its_stalls_and_scoreboards() -> None:
    exponential = ("MUFU.EX2 R0, R1", word(1, write=2))
    alone = replace(EVEN, mufu=8.0, mufu_latency=17.0)
    assert ends([steps(("FFMA R0, R0, R0, R0", word(4)), FFMA)]) == [5]
    assert ends([steps(exponential, ("FADD R0, R0, R0", word(1, waits=(2,))), machine=alone)], alone) == [18]
    assert ends([steps(exponential, exponential, exponential, machine=alone)], alone) == [17]


def test_two_warps_share_the_issue_slot() -> None:
    first, second = ends([steps(*[FFMA] * 100), steps(*[FFMA] * 100)])
    assert 199 <= max(first, second) <= 203


def test_products_run_one_after_the_other_and_their_wait_ends_with_them() -> None:
    assert ends([steps(WGMMA, WAITED)]) == [66]
    assert sorted(ends([steps(WGMMA, WAITED), steps(WGMMA, WAITED)]))[1] == pytest.approx(130, abs=1)
    late = replace(EVEN, wgmma_start=30.0, wgmma_done=33.0)
    assert ends([steps(WGMMA, WAITED, machine=late)], late) == [66 + 63]


def test_a_warp_with_a_full_queue_of_products_waits() -> None:
    [account] = ran([[*steps(*[WGMMA] * 12), WarpMark(ISSUED), *steps(WAITED)]])
    # One multiplies and three wait: the last one issues when the eighth is over.
    assert account.marks[ISSUED] == pytest.approx(8 * 64, abs=16)
    assert account.marks[END] == 12 * 64 + 2
    assert account.waited["wait mma"] == pytest.approx(4 * 64, abs=16)


@pytest.mark.parametrize("delay", probes.DELAYS)
@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_warps_share_the_queue_of_products_as_on_the_gpu(gpu, delay) -> None:
    measured = json.loads((PROBES_FOLDER / f"{gpu}.json").read_text())[f"two_queues_{delay}"]
    machine = replace(
        EVEN,
        wgmma_others=H200.wgmma_others,
        wgmma_queue=7.0,
        wgmma_issue_columns=10.0,
        wgmma_start=30.0,
        wgmma_done=35.0,
    )
    products = [("HGMMA.64x176x16.F32.BF16 R24, gdesc[UR4], R24, gsb0", word(1))] * probes.QUEUED
    late = [("FFMA R0, R1, R2, R3", word(10))] * (delay // 10)
    found = ends([steps(*before, *products, WAITED, machine=machine) for before in ([], late)], machine)
    assert found[0] == pytest.approx(measured[0], rel=0.1) and found[1] == pytest.approx(measured[1], rel=0.02)


def test_instructions_of_the_fma_pipe_take_time_from_the_tensor_core() -> None:
    far, close = [("FADD R0, R0, R0", word(8))] * 5, [("FADD R0, R0, R0", word(1))] * 20
    taking = replace(EVEN, taken=0.5, taken_ffma=2.0, taken_close=1.0)
    assert ends([steps(WGMMA, *far, WAITED, machine=taking)], taking) == [66 + 2.5]
    assert ends([steps(WGMMA, *close, WAITED, machine=taking)], taking) == [66 + 0.5 + 19]
    assert ends([steps(WGMMA, FFMA, WAITED, machine=taking)], taking) == [66 + 2]


def test_a_barriers_phase_ends_with_its_last_arrival() -> None:
    env = simpy.Environment()
    barrier = SimulatedBarrier(env, 2)
    barrier.arrive(10)
    barrier.arrive(40)
    env.run(until=barrier.over(0))
    assert env.now == 40 and not barrier.over(1).triggered


def test_warps_meet_at_barriers() -> None:
    quarter = Quarter(EVEN)
    barrier = SimulatedBarrier(quarter.env, 2)
    sync = steps(("BAR.SYNC 0x0", word(1)))
    for n, before in enumerate((5, 50)):
        found = [*steps(*[FFMA] * before), *sync, WarpMark(MET)]
        quarter.env.process(quarter.warp((0, n), found, lambda kind: Meeting("threads", barrier), repeat("mma")))
    quarter.env.run()
    met = [account.marks[MET] for account in quarter.accounts.values()]
    assert met[0] == pytest.approx(met[1], abs=2) and met[1] > 50
    assert quarter.accounts[0, 0].waited["wait threads"] > 40


def candidate(name: str, causal: bool = False, seq: int = 4096) -> Candidate:
    shape = AttentionShape(8, 16, seq, seq, 128, "bfloat16", **({"mask": CAUSAL} if causal else {}))
    return Candidate(name, shape, Planned(resolve(name).schedule), sms=132, arch="sm_90a")


def test_a_grid_has_the_tiles_and_blocks_of_the_problem() -> None:
    grid = Grid.of(candidate("best"), 1)
    # Clusters of two blocks of 128 rows, and 24 KV blocks of 176 keys, the last of which is cut.
    assert (len(grid.order), grid.workers, grid.strided) == (8 * 16 * 16, 66, True)
    assert set(grid.blocks) == {24} and set(grid.masked) == {1}
    assert grid.cycles(lambda blocks: blocks * 100.0, 0.0) == 32 * 2400
    causal = Grid.of(candidate("best_causal", causal=True), 1)
    assert list(causal.blocks) == [*range(1, 33)] and not causal.strided
    mean = float(causal.blocks[causal.order].sum()) / causal.workers
    assert mean * 100 < causal.cycles(lambda blocks: blocks * 100.0, 0.0) < mean * 101.5
    # The longest tiles of a head come first.
    assert causal.order[0] == 31


def test_every_number_says_its_source_and_meaning() -> None:
    assert set(H200.sources) == set(NUMBERS) and all(NUMBERS.values())


def test_a_machine_predicts_no_kernel_of_another_card() -> None:
    with pytest.raises(InputError, match="^NVIDIA H200 is sm_90a, expected a machine file of sm_86"):
        predict(replace(candidate("best"), arch="sm_86"), H200)


def test_a_kernel_whose_code_has_no_loop_has_no_prediction_and_says_so(monkeypatch) -> None:
    """A loop alone in the kernel of a persistent schedule is the one over its tiles."""
    exit = ("EXIT", word(5))
    straight, of_tiles = code(WGMMA, exit), code(WGMMA, ("@P0 BRA 0x0", word(5)), exit)
    for name, listing in (("seed", straight), ("mma_sync", straight), ("best", straight), ("best", of_tiles)):
        kernel = SimpleNamespace(disassembly=listing, blocks_per_sm=1)
        monkeypatch.setattr(prediction, "compile_kernel", lambda *_: None)
        monkeypatch.setattr(prediction, "MachineCode", lambda _, kernel=kernel: kernel)
        with pytest.raises(InputError, match=rf"^{name}: no loop over KV blocks in the machine code, expected more"):
            predict(candidate(name), H200)


def test_what_ptxas_serialised_is_named_and_the_others_are_predicted(monkeypatch) -> None:
    def serialised(*_: object) -> None:
        raise ScheduleRefused("ptxas serialised the products")

    compiled = prediction.compiled
    monkeypatch.setattr(prediction, "compile_kernel", serialised)
    monkeypatch.setattr(
        prediction, "compiled", lambda one, on: in_store(one, on) if one.name == "best" else compiled(one, on)
    )
    done = CliRunner().invoke(
        main, ["predict", "seed", "inferred", "best", "--dtype", "bf16", "--shape", "1,2,512,128"]
    )
    refused, *lines = done.stderr.splitlines()
    assert done.exit_code == 2 and refused.startswith("error: inferred: no Program")
    assert lines == [
        "predict: kernel 1 of 2: seed",
        "predict: kernel 2 of 2: best",
        "error: seed: ptxas serialised the products",
        "2 of 3 schedules have errors",
    ]
    assert done.stdout.startswith("predicted for (1, 2, 512, 128)") and "\nbest " in done.stdout


# Of an H100, in cycles.
PROBES = {
    "ffma": 1.054,
    "fmul": 1.062,
    "fadd": 1.07,
    "imad": 2.058,
    "fmnmx": 2.05,
    "cvt": 2.05,
    "lop3": 2.051,
    "mov": 2.069,
    "ex2": 8.042,
    "ex2_latency": 17.024,
    "shfl": 4.056,
    "shfl_latency": 24.013,
    "wgmma_ss_interval_256": 128.0,
}


def test_a_calibrated_machine_is_a_file_that_loads(tmp_path) -> None:
    found = calibrated(PROBES, H200, "NVIDIA H100 80GB HBM3", "580.159.04", "2026-11-26", 132)
    (tmp_path / "mine.yaml").write_text(text(found))
    assert machines.load(str(tmp_path / "mine.yaml")) == found
    # In whole cycles.
    assert (found.alu, found.wgmma_columns, found.mufu_latency) == (2.0, 2.0, 17.0)
    assert all(found.sources[name].startswith("calibrate: ") for name in MEASURED)
    assert found.stall_beside == H200.stall_beside and "on NVIDIA H200" in found.sources["stall_beside"]


def test_a_microbenchmark_that_gave_up_is_told() -> None:
    with pytest.raises(InputError, match="^calibrate: mufu is -1, expected more than 0"):
        calibrated({**PROBES, "ex2": -1.0}, H200, "", "", "", 132)


def test_what_the_microbenchmarks_cannot_measure_or_write_is_one_line(tmp_path) -> None:
    there = shutil.copy(machines.FOLDER / "h200.yaml", tmp_path / "machine.yaml")
    no_gpu = "error: calibrate: no GPU of sm_90a here, expected one: what is measured needs it\n"
    for output, words in ((tmp_path / "mine.yaml", no_gpu), (there, "--output writes it and the command reads it")):
        done = CliRunner().invoke(measure.main, ["calibrate", "--machine", str(there), "--output", str(output)])
        assert done.exit_code == 2 and words in done.output
    done = CliRunner().invoke(measure.main, ["probes"])
    assert (done.exit_code, done.output) == (2, "error: probes: no GPU here, expected one of sm_90a (H100, H200)\n")


@exhaustive
def test_the_microbenchmarks_compile_and_multiply_in_groups() -> None:
    source = probes.compile_probes().get_kernel_source()
    assert "wgmma.mma_async.sync.aligned.m64n256k16" in source and "tl_attention_probe(" in source


@pytest.mark.gpu
def test_calibrate_measures_the_gpu_here(tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    done = CliRunner().invoke(measure.main, ["calibrate", "--output", str(path)])
    assert done.exit_code == 0, done.output
    found = machines.load(str(path))
    # An exponential takes a warp's quarter 8 cycles, and a wgmma a cycle for two columns, on every Hopper GPU.
    assert found.mufu == pytest.approx(8, rel=0.02) and found.wgmma_columns == pytest.approx(2, rel=0.01)
