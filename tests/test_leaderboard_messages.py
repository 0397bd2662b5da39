"""What a submission's process may say, and what is made of anything else."""

from __future__ import annotations

import json

import pytest

from tl_attention.leaderboard.messages import MAX_BYTES, MAX_SAMPLES, Ended, First, Imported, Second, one_line, read

OUTPUT = {"type": "Tensor", "shape": [1, 2, 16, 8], "dtype": "torch.float16", "device": "cpu", "kept_mib": None}
FIRST = {"kind": "first", "output": OUTPUT}
TIMED = {"samples_ms": [1.0, 2, 3.5], "elapsed_s": 0.1}
SECOND = {"kind": "second", "output": OUTPUT, "timed": TIMED}


def test_the_messages_are_read() -> None:
    assert read(json.dumps({"kind": "imported"}).encode(), Imported).kind == "imported"
    first = read(json.dumps(FIRST).encode(), First)
    assert first.output.shape == (1, 2, 16, 8) and first.output.kept_mib is None
    second = read(json.dumps(SECOND).encode(), Second)
    assert second.timed is not None and second.timed.samples_ms == (1.0, 2.0, 3.5)
    assert read(json.dumps(SECOND | {"timed": None}).encode(), Second).timed is None


def test_the_longest_message_fits() -> None:
    samples = [1.2345678901234567e-300] * MAX_SAMPLES
    data = json.dumps(SECOND | {"timed": TIMED | {"samples_ms": samples}}).encode()
    assert len(data) < MAX_BYTES
    assert len(read(data, Second).timed.samples_ms) == MAX_SAMPLES


def test_an_exception_stands_for_any_message() -> None:
    with pytest.raises(Ended) as ended:
        read(b'{"kind": "failed", "reason": "ValueError: a\\nb \\u001b[31m"}', First)
    assert (ended.value.status, str(ended.value)) == ("error", "ValueError: a b \\x1b[31m")


def changed(**values: object) -> bytes:
    return json.dumps(SECOND | values).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04K\x01.",
        b"{",
        b"null",
        b"[]",
        b"1",
        b'"second"',
        b"\xff\xfe",
        b"[" * 60_000,
        b'{"a":' * 10_000,
        b'{"status": "pass"}',
        b'{"kind": "pass"}',
        b'{"kind": ["second"]}',
        b'{"kind": "second"}',
        b'{"kind": "imported"}',
        b'{"kind": "failed"}',
        b'{"kind": "failed", "reason": 1}',
        json.dumps(FIRST).encode(),
        changed() + b"{}",
        changed(accepted=True),
        changed(output=OUTPUT | {"accepted": True}),
        changed(output=None),
        changed(output=OUTPUT | {"shape": [1.0]}),
        changed(output=OUTPUT | {"shape": "1"}),
        changed(output=OUTPUT | {"shape": [1] * 65}),
        changed(output=OUTPUT | {"dtype": "x" * 81}),
        changed(output=OUTPUT | {"kept_mib": float("nan")}),
        changed(output=OUTPUT | {"kept_mib": "0"}),
        changed(timed={"samples_ms": [1.0]}),
        changed(timed=TIMED | {"samples_ms": []}),
        changed(timed=TIMED | {"samples_ms": [float("nan")]}),
        changed(timed=TIMED | {"samples_ms": [float("inf")]}),
        changed().replace(b"3.5", b"1e999"),
        changed().replace(b"3.5", b"1" * 5000),
        changed().replace(b"3.5", b"true"),
        changed().replace(b"3.5", b'"3.5"'),
        changed().replace(b"3.5", b"0"),
        changed().replace(b"3.5", b"-1"),
        changed(timed=TIMED | {"samples_ms": [1.0] * (MAX_SAMPLES + 1)}),
        changed(timed=TIMED | {"mean_ms": 1.0}),
    ],
    ids=lambda data: data[-40:].decode(errors="replace"),
)
def test_anything_else_is_no_message(data: bytes) -> None:
    with pytest.raises(Ended, match="^no valid message from the process: ") as ended:
        read(data, Second)
    assert ended.value.status == "error"
    assert str(ended.value).isprintable() and len(str(ended.value)) <= 300


@pytest.mark.parametrize(
    "values, reason",
    [
        ({}, ""),
        (
            {"type": "NoneType", "shape": [], "dtype": "", "device": ""},
            "custom_kernel returned NoneType, expected a tensor",
        ),
        ({"shape": [1, 2, 16]}, "the output's shape is (1, 2, 16), expected (1, 2, 16, 8)"),
        ({"dtype": "torch.float32"}, "the output's dtype is torch.float32, expected torch.float16"),
        ({"dtype": "\x1b[2K"}, "the output's dtype is \\x1b[2K, expected torch.float16"),
        ({"device": "meta"}, "the output's device is meta, expected cpu"),
    ],
)
def test_what_is_no_output_is_refused(values: dict, reason: str) -> None:
    output = read(json.dumps(FIRST | {"output": OUTPUT | values}).encode(), First).output
    assert output.refusal((1, 2, 16, 8), "cpu") == reason


def test_the_gpu_is_the_first() -> None:
    output = read(json.dumps(FIRST).encode(), First).output
    assert output.refusal((1, 2, 16, 8), "cuda") == "the output's device is cpu, expected cuda:0"


def test_text_is_made_one_printable_line() -> None:
    assert one_line("a\n b\u2028c\x00\x9b\u00e9") == "a b c\\x00\\x9b\u00e9"
    assert len(one_line("x" * 1000)) == 300
