"""ncu: the table that it prints, its refusals, and its end at the limit; on an executable that prints a sample."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ncu_sample import BF16, FP16, fake_ncu

from tl_attention.errors import InputError
from tl_attention.measure import counters, ncu
from tl_attention.measure.counters import METRICS, known_of, of_jobs, parse
from tl_attention.measure.ncu import Ncu

# --- ncu's table -----------------------------------------------------------------------------------------------


def test_counters_are_numbers_in_base_units_in_the_order_of_launches() -> None:
    launches = parse(FP16)
    assert [launch.kernel for launch in launches] == ["attention_kernel"] * 4
    seed = launches[0].metrics
    assert seed[counters.DURATION] == 17_981_184 and seed[counters.ARRIVED] == 69_257_368_576
    assert seed[counters.WARPS] == 7.97 and seed[counters.stalled("barrier")] == 48_540.95
    assert set(seed) == set(METRICS)


def test_a_peer_has_its_own_kernel_and_what_was_not_counted_is_left_out() -> None:
    *_, fa3 = parse(BF16)
    assert "FlashAttnFwdSm90" in fa3.kernel and fa3.metrics[counters.SECTORS_READ] == 1_101_006_442
    assert counters.ARRIVED not in fa3.metrics


def test_a_counter_without_a_number_is_left_out() -> None:
    text = FP16.replace('"69,257,368,576"', '"n/a"')
    seed, best, *_ = parse(text)
    assert counters.ARRIVED not in seed.metrics and counters.ARRIVED in best.metrics


def test_what_profiled_nothing_has_no_launches() -> None:
    assert parse("==PROF== Connected\n==WARNING== No kernels were profiled.\n") == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"Kernel Name"', '"Name"', "no column 'Kernel Name'"),
        ('"ns"', '"ms"', "gpu__time_duration.sum is in 'ms', expected ns"),
        ('"","","","","","","","","","",""', '"9","","","","","","","","","",""', "no row of units"),
    ],
)
def test_another_table_is_refused(old, new, message) -> None:
    assert FP16.count(old)
    with pytest.raises(InputError, match=message):
        parse(FP16.replace(old, new, 1))


def test_only_what_this_ncu_knows_is_asked_for() -> None:
    query = "Chip gh100\nsm__throughput   Throughput %\ndram__bytes_read  Counter byte\n"
    asked = ["sm__throughput.avg.pct", "lts__t_bytes.sum", "dram__bytes_read.sum", "launch__registers_per_thread"]
    assert known_of(asked, query) == ["sm__throughput.avg.pct", "dram__bytes_read.sum", "launch__registers_per_thread"]
    assert known_of(asked, "an ncu that lists nothing\n") == asked


def test_launches_between_two_marks_are_one_jobs() -> None:
    mark, one, two = (counters.Launch(name, {}) for name in ("at::spin_kernel(long)", "one", "two"))
    assert of_jobs([mark, one, mark, one, two], "spin_kernel", 2) == [[one], [one, two]]
    for wrong, message in (
        ([one], "one is its first launch"),
        ([mark, one], r"profiled 1 kernels \(launches: 1\), expected 2"),
        ([mark, one, mark], r"launches: 1, 0"),
        ([], "launches: none"),
    ):
        with pytest.raises(InputError, match=message):
            of_jobs(wrong, "spin_kernel", 2)


# --- ncu -------------------------------------------------------------------------------------------------------


def test_ncu_is_asked_for_the_metrics_that_it_knows(tmp_path, monkeypatch) -> None:
    (tmp_path / "sample").write_text(FP16)
    query = "gpu__time_duration x\nsm__throughput x\n"
    arguments = fake_ncu(tmp_path, monkeypatch, f"cat {tmp_path / 'sample'}", query)
    found = Ncu()
    assert found.version() == "2025.3.1.0"
    known = found.known_metrics()
    assert known == [counters.DURATION, counters.COMPUTE, counters.REGISTERS]
    assert len(found.profile(["python", "-m", "job"], known, 60)) == 4
    given = arguments.read_text().splitlines()
    assert given[given.index("--metrics") + 1] == ",".join(known) and given[-3:] == ["python", "-m", "job"]
    assert given[:2] == ["--profile-from-start", "off"] and "--csv" in given


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"; exit 1',
            r"may not read the GPU's counters \(ERR_NVGPUCTRPERM\), expected a driver with NVreg_Restrict",
        ),
        (
            'echo "==ERROR== The application returned an error code (1)."; echo "a: trace" >&2; echo "OOM: 9 GB" >&2; exit 1',
            r"exit code 1, 0 launches counted: ==ERROR== The application returned an error code \(1\)\.; OOM: 9 GB",
        ),
        ('echo "==WARNING== No kernels were profiled."', "exit code 0, 0 launches counted: ==WARNING== No kernels"),
        ("exit 3", "exit code 3, 0 launches counted: it said nothing"),
    ],
)
def test_what_ncu_refuses_is_one_line(tmp_path, monkeypatch, body, message) -> None:
    fake_ncu(tmp_path, monkeypatch, body)
    with pytest.raises(InputError, match=message) as refused:
        Ncu().profile(["true"], METRICS, 60)
    assert "\n" not in str(refused.value)


def test_at_the_limit_all_that_ncu_started_is_killed(tmp_path, monkeypatch) -> None:
    fake_ncu(tmp_path, monkeypatch, f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait")
    with pytest.raises(InputError, match="ncu: no answer within 1 s, killed"):
        Ncu().profile(["true"], METRICS, 1)
    assert has_ended(int((tmp_path / "pid").read_text()))


def has_ended(pid: int) -> bool:
    """Whether a process ends within seconds; where nobody waits for it, it stays a zombie."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_without_ncu_it_says_where_it_looked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(ncu.shutil, "which", lambda *given, **named: None)
    with pytest.raises(InputError, match="no ncu on the PATH, CUDA_HOME and /usr/local/cuda, expected NVIDIA's Nsight"):
        Ncu()
