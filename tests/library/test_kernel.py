"""The kernel as TileLang sees it agrees with statement table and Program; its launch reaches the launcher."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from code_events import block_events
from golden_kernels import KERNELS
from mutations import shipped
from once import Given, lowered, proved, reading
from tiers import exhaustive, sampled
from traced import traced_statements

from tl_attention.codeproof.read.calls import CALLS
from tl_attention.codeproof.read.text import read
from tl_attention.compiler.compile import compile_kernel, fingerprint
from tl_attention.errors import ScheduleRefused
from tl_attention.kernels.registry import lowering_of
from tl_attention.lab.machine_code.of_kernel import MachineCode
from tl_attention.launch import memory
from tl_attention.launch.memory import launch_of
from tl_attention.problem.mask import CAUSAL, FULL
from tl_attention.problem.variant import Sizes, Variant
from tl_attention.program.derivation import derive
from tl_attention.program.limits import shared_bytes
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.schedule_file import load
from tl_attention.schedule.loop.attention import SOURCE
from tl_attention.schedule.schedule import Schedule

TILELANG_KIND = {"load": {"copy"}, "product": {"gemm"}, "vector": {"copy", "fill", "parallel", "reduce"}}


@pytest.mark.parametrize("mask", [FULL, CAUSAL], ids=["full", "causal"])
@pytest.mark.parametrize("sizes", [None, Sizes(1, 2, 256, 512)])
@pytest.mark.parametrize("kv_order", ["ascending", "descending"])
@pytest.mark.parametrize("dtype,head_dim", [("float16", 128), ("bfloat16", 64)])
def test_the_statement_table_is_what_tilelang_traced(mask, sizes, kv_order, dtype, head_dim):
    schedule = shipped()["seed"].model_copy(update={"kv_order": kv_order})
    variant = Variant(head_dim, dtype, mask, sizes=sizes, group=1 if sizes else None)
    kernel = lowering_of(schedule).prim_func(Planned(schedule), variant)
    traced = traced_statements(kernel)
    assert len(traced) == len(SOURCE.statements)
    for found, entry in zip(traced, SOURCE.statements):
        assert found.reads == set(entry.reads), entry.name
        assert found.writes == set(entry.writes), entry.name
        assert found.kind in TILELANG_KIND[entry.kind], entry.name


def test_the_inferred_kernel_has_the_same_statements():
    inferred = load("schedules/inferred.yaml")
    assert lowering_of(inferred).constants(Planned(inferred), Variant(128, "float16")).pipeline == {"num_stages": 2}
    kernel = lowering_of(inferred).prim_func(Planned(inferred), Variant(128, "float16"))
    assert len(traced_statements(kernel)) == len(SOURCE.statements)


@pytest.mark.parametrize(
    "name,mask", sampled([("seed", CAUSAL), ("prefetch", FULL), ("prefetch_late", FULL)], [("seed", CAUSAL)])
)
def test_the_code_as_generated_is_the_programs(name, mask):
    """Numbers worked out by hand are what the proof reads in the code."""
    schedule = shipped()[name]
    program = derive(schedule)
    code = lowered(Given(schedule, Variant(128, "float16", mask)))
    tile, of_k, of_v = 128 * 128 * 2, program.buffers["load_k"], program.buffers["load_v"]
    assert (schedule.block_M, schedule.block_N) == (128, 128)
    assert read(code.source, CALLS).declared.buffers == {"Q": 0, "K": tile, "V": tile * (1 + of_k)}
    assert code.plan.shared_bytes == tile * (1 + of_k + of_v)
    for blocks in (program.least_blocks, 8):
        run = block_events(schedule, code, Sizes(1, 1, 1, blocks * schedule.block_N))
        for kind in ("load", "product"):
            assert Counter(event.name for event in run if event.kind == kind) == {"K": blocks, "V": blocks}
    assert code.plan.shared_bytes == shared_bytes(Planned(schedule), 128)


@exhaustive
@pytest.mark.parametrize("name,mask", [("seed", CAUSAL), ("prefetch", FULL), ("prefetch_late", FULL)])
def test_the_compiled_kernel_is_that_code_and_has_the_registers_that_it_needs(name, mask):
    schedule, variant = shipped()[name], Variant(128, "float16", mask)
    compiled = compile_kernel(schedule, variant)
    assert (compiled.source, compiled.shared_bytes) == (
        lowered(Given(schedule, variant)).source,
        compiled.generated.plan.shared_bytes,
    )
    assert (
        MachineCode(compiled).report.registers
        >= lowering_of(schedule).resources(Planned(schedule), 128).fragment_registers * 0.8
    )


def test_a_loop_that_overwrites_a_buffer_in_use_is_refused():
    kernel = KERNELS["prefetch_late"]
    code = lowered(kernel)
    lines = code.source.splitlines()
    loop = next(n for n, line in enumerate(lines) if line.startswith("  for (int k"))
    barriers = [n for n in range(loop, len(lines)) if "__syncthreads" in lines[n]]
    for barrier in barriers[:2]:
        source = "\n".join(lines[:barrier] + lines[barrier + 1 :])
        with pytest.raises(ScheduleRefused, match="with no barrier between|does not wait for"):
            reading.prove(kernel.schedule, replace(code, source=source))


@exhaustive
def test_an_order_for_which_tilelang_waits_too_little_is_refused():
    """V is loaded before K: the wait before mma0 leaves K's load in flight, and a GPU's result would be wrong."""
    label = "pipelined_128x128_t256_n2_0o1s0_1-2o2s0_3-10o3s0_11o4s0_12o5s0_13p_14o0s1"
    with pytest.raises(ScheduleRefused, match=r"mma0\(1\) does not wait for load_k\(1\)"):
        proved(Given(Schedule.from_label(label), Variant(128, "float16")))


def test_fixed_sizes_without_a_steady_state_are_proved_too():
    kernel = KERNELS["seed, fixed"]
    assert proved(kernel).digest
    assert lowered(kernel).plan.shared_bytes == shared_bytes(Planned(kernel.schedule), 128)


@exhaustive
def test_schedules_that_differ_give_different_code_and_equal_ones_the_same():
    seed, split = (
        shipped()["seed"],
        shipped()["seed"].model_copy(
            update={
                "group": (("load_k",), ("mask",), ("mma0",), *shipped()["seed"].group[2:]),
                "order": (-1, 0, 1, 4, 2, -1, 3),
                "stage": (-1, 0, 0, 0, 1, -1, 1),
            }
        ),
    )
    variant, other = Variant(128, "float16", CAUSAL), shipped()["prefetch_late"]
    same, others, another = (fingerprint(lowered(Given(s, variant)).source) for s in (seed, split, other))
    assert same == others != another


PLAIN = Variant(128, "float16")
PACKED = Variant(128, "float16", packed=True)


def half(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=torch.float16)


def test_it_reaches_the_launcher() -> None:
    """The launcher refuses tensors on the CPU."""
    kernel = compile_kernel(shipped()["seed"], PLAIN)
    given = {name: half(1, 2, 128, 128) for name in ("Q", "K", "V", "Output")} | {"softmax_scale": 0.1, "group": 1}
    for call in (lambda: kernel.launch(*given.values()), lambda: kernel(**given)):
        with pytest.raises(ValueError, match="Q has DLPack device type 1, expected 2"):
            call()


def test_without_a_counter_it_is_the_function_itself() -> None:
    assert launch_of(print, PLAIN.parameters()) is print


def test_a_launch_finds_the_counter_and_room_for_the_list(monkeypatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(
        memory, "launch_memory", lambda device, words: ([], memory.LaunchMemory(f"counter on {device}", "room", words))
    )
    q = half(1)
    launch_of(lambda *given: found.append(given), PLAIN.parameters("TileCounter"))(q, "others")
    packed = [p.name for p in PACKED.parameters("TileCounter")]
    launch_of(lambda *given: found.append(given), PACKED.parameters("TileCounter"))(q, *packed[1:-2], 40)
    assert found == [(q, "others", "counter on -1"), (q, *packed[1:-2], "room", "counter on -1")]


def test_a_launch_that_fails_leaves_no_room_for_others(monkeypatch) -> None:
    free: list[memory.LaunchMemory] = []
    monkeypatch.setattr(memory, "launch_memory", lambda device, words: (free, memory.LaunchMemory(0, 0, words)))
    launch_of(lambda *given: None, PACKED.parameters())(half(1), *range(10))
    assert len(free) == 1
    with pytest.raises(TypeError):
        launch_of(lambda q: None, PACKED.parameters())(half(1), *range(10))
    assert len(free) == 1


class Streams:
    """These streams stand in for those of CUDA devices: the current stream, and whether it is captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.capturing = 0, False
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: self.stream, raising=False)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: (device, self.stream))
        monkeypatch.setattr(memory, "_free", {})
        monkeypatch.setattr(memory, "_allocate", self.room)

    @staticmethod
    def room(device: int, words: int, stream: object = None) -> memory.LaunchMemory:
        assert stream is None or stream[0] == device
        return memory.LaunchMemory(torch.zeros(2, dtype=torch.int32), torch.empty(words, dtype=torch.int32), words)

    @staticmethod
    def rooms(device: int, *words: int) -> list[memory.LaunchMemory]:
        """Returns the rooms of launches that are under way at the same time, and puts them back."""
        taken = [memory.launch_memory(device, of) for of in words]
        for free, room in taken:
            free.append(room)
        return [room for _, room in taken]


def test_launches_on_a_stream_share_a_room_unless_they_are_under_way_together_or_captured(monkeypatch) -> None:
    streams, found = Streams(monkeypatch), []
    for device in (0, 1):
        for streams.stream in (0, 7):
            (room,) = streams.rooms(device, 100)
            assert streams.rooms(device, memory.LEAST_WORDS) == [room] and not room.counter.any()
            first, second = streams.rooms(device, 0, 100)
            assert {id(first), id(second)} > {id(room)} and first.counter is not second.counter
            found += [first, second]
    streams.capturing = True
    found += [room for _ in range(2) for room in streams.rooms(1, 40)]
    assert len({id(room.tiles) for room in found}) == len({id(room.counter) for room in found}) == 10
    assert found[-1].tiles.shape == (40,)
    streams.capturing = False
    # One that is too small goes, and a larger one has room for more than is asked for now.
    (large,) = streams.rooms(1, memory.LEAST_WORDS + 1)
    assert large.tiles.shape == (2 * memory.LEAST_WORDS,) and all(large is not room for room in found)
    assert streams.rooms(1, memory.LEAST_WORDS, 2 * memory.LEAST_WORDS)[0] is large
