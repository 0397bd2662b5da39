"""Tests check cards: their limits, which GPU is which, a lowering's target, and what is refused on which card."""

import re
from dataclasses import replace

import pytest
from mutations import shipped
from stand_in import gpus

from tl_attention.errors import InputError, ScheduleRefused
from tl_attention.kernels.preflight import check_limits, refuse_unless_safe, verdicts
from tl_attention.kernels.registry import LOWERINGS, lowering_of
from tl_attention.lab.measure.device import VisibleGpu, another_gpu, card_at_hand
from tl_attention.lab.show.explain import explain
from tl_attention.problem.card import ARCHS, CARDS, HOPPER, Card, card_of, known_card
from tl_attention.problem.shape import AttentionShape
from tl_attention.problem.variant import Variant
from tl_attention.program.limits import check_fits
from tl_attention.program.planned import Planned
from tl_attention.schedule.files.conditions import Case

__all__ = ["gpus"]
BEST = shipped()["best"]
SHAPE = AttentionShape(1, 2, 64, 64, 128)
# CUDA C++ Programming Guide, technical specifications per compute capability: KiB of shared memory of an SM and of a
# block, threads and blocks of an SM.
SPECIFIED = {
    (8, 0): (164, 163, 2048, 32),
    (8, 6): (100, 99, 1536, 16),
    (8, 9): (100, 99, 1536, 24),
    (9, 0): (228, 227, 2048, 32),
    (12, 0): (100, 99, 1536, 24),
}


def test_the_cards_are_those_of_the_guide():
    found = {
        card.capability: (
            card.shared_bytes_per_sm // 1024,
            card.shared_bytes_per_block // 1024,
            card.threads_per_sm,
            card.blocks_per_sm,
        )
        for card in CARDS.values()
    }
    assert found == SPECIFIED
    assert tuple(CARDS) == ARCHS and HOPPER is CARDS["sm_90a"]
    assert {(card.registers_per_sm, card.registers_per_thread) for card in CARDS.values()} == {(65_536, 255)}
    for card in CARDS.values():
        assert card.arch.removesuffix("a") == f"sm_{card.capability[0]}{card.capability[1]}"


def test_what_a_block_may_have_is_the_sms_share_and_no_more_than_a_blocks():
    assert [HOPPER.registers_available(threads) for threads in (128, 256, 384)] == [255, 255, 168]
    assert [HOPPER.registers_available(256, blocks) for blocks in (2, 3, 4)] == [128, 80, 64]
    assert [HOPPER.shared_available(blocks) for blocks in (1, 2, 3)] == [227 * 1024, 113 * 1024, 75 * 1024]
    assert [CARDS["sm_80"].shared_available(blocks) for blocks in (1, 2)] == [163 * 1024, 81 * 1024]
    for arch in ("sm_86", "sm_89", "sm_120"):
        assert [CARDS[arch].shared_available(blocks) for blocks in (1, 2, 3)] == [99 * 1024, 49 * 1024, 33109]
    # Where a block's limit is less than what the system leaves of the SM.
    assert replace(HOPPER, shared_bytes_per_block=99).shared_available() == 99


@pytest.mark.parametrize(
    "arch,threads,registers,shared,blocks,limited_by",
    [
        ("sm_80", 128, 128, 81 * 1024, 2, "shared memory"),
        ("sm_80", 128, 128, 81 * 1024 + 1, 1, "the granule of shared memory"),
        ("sm_86", 128, 255, 49 * 1024, 2, "two warps of a partition with 256 registers a thread"),
        ("sm_86", 128, 128, 1024, 4, "four warps of a partition with 128 registers a thread"),
        ("sm_86", 128, 16, 1024, 12, "threads"),
        ("sm_86", 32, 16, 128, 16, "blocks"),
        ("sm_89", 32, 16, 128, 24, "blocks"),
        ("sm_90a", 384, 168, 200 * 1024, 1, "registers, to the last one"),
        ("sm_90a", 384, 176, 1024, 0, "registers: not even one"),
        ("sm_120", 128, 64, 99 * 1024 + 1, 0, "shared memory of a block"),
        ("sm_120", 128, 64, 99 * 1024, 1, "shared memory of a block, to the last byte"),
    ],
)
def test_so_many_blocks_fit_an_sm(arch, threads, registers, shared, blocks, limited_by):
    assert CARDS[arch].blocks_that_fit(threads, registers, shared) == blocks, limited_by


@pytest.mark.parametrize(
    "registers,shared_kib,warps,limited_by",
    [
        (229, 48, 8, "two warps of a partition with 232 registers a thread, and shared memory"),
        (168, 32, 12, "three warps of a partition, and shared memory"),
        (255, 48, 8, "two warps of a partition with 256 registers a thread, and shared memory"),
        (255, 64, 4, "shared memory"),
    ],
)
def test_so_many_warps_are_on_an_sm(registers, shared_kib, warps, limited_by):
    """The numbers are the occupancies that "flash attention from scratch", part 6, has for an RTX 3090."""
    assert CARDS["sm_86"].warps_per_sm(128, registers, shared_kib * 1024) == warps, limited_by


def test_warps_are_counted_whole():
    assert CARDS["sm_86"].warps_per_sm(48, 32, 1024) == 2 * CARDS["sm_86"].blocks_that_fit(48, 32, 1024)
    assert CARDS["sm_86"].warps_per_sm(128, 32, 100 * 1024) == 0


def test_resources_say_how_many_blocks_fit():
    short = shipped()["short_d64"]
    takes = lowering_of(short).resources(Planned(short), 64)
    assert takes.blocks_that_fit(HOPPER, short.threads, takes.launched) == short.kernel.blocks_per_sm == 2
    assert takes.blocks_that_fit(CARDS["sm_86"], short.threads, takes.launched) == 0


@pytest.mark.parametrize("capability", SPECIFIED)
def test_a_gpu_is_the_card_of_its_compute_capability(capability):
    assert card_of(capability, "a GPU").capability == capability


@pytest.mark.parametrize("capability", [(7, 5), (8, 7), (10, 0), (12, 1)])
def test_a_gpu_that_is_no_card_is_refused_in_one_line_that_lists_them(capability):
    words = (
        f"device: Orin has compute capability {capability[0]}.{capability[1]}, expected one of 8.0 (A100), 8.6 (RTX 3090), "
        "8.9 (RTX 4090), 9.0 (H100, H200), 12.0 (RTX 5090)"
    )
    assert known_card(capability) is None
    with pytest.raises(InputError, match=f"^{re.escape(words)}$"):
        card_of(capability, "Orin")


def test_the_card_at_hand_is_the_first_gpus(gpus):
    gpus()
    assert card_at_hand() == HOPPER and another_gpu("sm_80") is None
    gpus(VisibleGpu("GPU-0", "NVIDIA GeForce RTX 4080", (8, 9), 76), VisibleGpu("GPU-1", "NVIDIA H200", (9, 0)))
    assert card_at_hand() == replace(CARDS["sm_89"], sms=76) and another_gpu("sm_89") is None
    assert another_gpu("sm_90a").name == "NVIDIA GeForce RTX 4080"
    gpus(VisibleGpu("GPU-0", "Orin", (8, 7), 16))
    assert card_at_hand() == HOPPER and another_gpu("sm_90a").name == "Orin"


def test_what_is_compiled_is_for_one_card():
    assert Variant(128, "float16").arch == "sm_90a"
    variant = Variant(128, "float16", arch="sm_86")
    assert variant.card == CARDS["sm_86"] and variant != Variant(128, "float16")


@pytest.mark.parametrize("name", ["pipelined", "warp_specialized", "inferred"])
def test_lowerings_that_multiply_by_wgmma_are_for_hopper_alone(name):
    assert LOWERINGS[name].archs == ("sm_90a",)


@pytest.mark.parametrize("check", [check_limits, refuse_unless_safe, lambda *of: list(verdicts(of[0], [of[1]], of[2]))])
def test_a_schedule_is_refused_for_a_card_that_its_lowering_is_not_for(check):
    words = "lowering: warp_specialized runs on sm_90a (H100, H200), not on sm_86 (RTX 3090)"
    check(Planned(BEST), 128, HOPPER)
    with pytest.raises(ScheduleRefused, match=f"^{re.escape(words)}$") as refusal:
        check(Planned(BEST), 128, CARDS["sm_86"])
    assert refusal.value.key == ("lowering",)


def small(card: Card) -> None:
    check_fits(BEST, 128, lowering_of(BEST).resources(Planned(BEST), 128, card), card)


def test_a_limit_names_the_card_that_it_is_of():
    with pytest.raises(ScheduleRefused, match=r"the SM of sm_86 \(RTX 3090\) has 101,376: \(block_M 128"):
        small(CARDS["sm_86"])
    with pytest.raises(ScheduleRefused, match=r"the SM has 101,376: "):
        small(replace(HOPPER, shared_bytes_per_block=99 * 1024))
    few = replace(CARDS["sm_80"], shared_bytes_per_block=HOPPER.shared_bytes_per_block, shared_bytes_per_sm=2**18)
    wide = BEST.model_copy(
        update={"block_N": 256, "kernel": BEST.kernel.model_copy(update={"k_stages": 1, "v_stages": 1})}
    )
    with pytest.raises(ScheduleRefused, match=r"256 threads of sm_80 \(A100\) have 240"):
        check_fits(wide, 128, lowering_of(wide).resources(Planned(wide), 128, few), few)
    assert "of 101,376 bytes of sm_86 (RTX 3090): " in explain(Planned(BEST), card=CARDS["sm_86"])
    assert "of 232,448 bytes: " in explain(Planned(BEST))


def test_a_case_names_its_card_unless_it_is_the_default():
    assert str(Case.of(SHAPE)).startswith("head_dim 128, float16")
    assert str(Case.of(SHAPE, "sm_120")).startswith("sm_120 (RTX 5090), head_dim 128, float16")
