"""Plans launch later calls of a kind without checks; each call does what it would do as the first of the process."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calls import BASES, OTHER, PAIRS, Options, Recorder, call, half, recorder
from on_cpu import Kernels, on_cpu
from torch import Tensor
from torch._subclasses import FakeTensorMode

from tl_attention import InputError, attention
from tl_attention.lab.oracle.reference import attention_and_lse
from tl_attention.op import checks as of_checks
from tl_attention.op import compiled, run
from tl_attention.op import plan as of_plans
from tl_attention.op.batch import batch_of
from tl_attention.op.call import Call
from tl_attention.op.launch import FOUND, NAMES
from tl_attention.op.plan import key_of
from tl_attention.problem.features import INPUTS
from tl_attention.problem.mask import CAUSAL
from tl_attention.problem.variant import KERNEL_PARAMETERS
from tl_attention.schedule.files.schedule_file import load

__all__ = ["on_cpu", "recorder"]

GRAD = {"with gradients": torch.enable_grad, "without": torch.no_grad}
KEY = key_of(Call(*(half(1, 1, 8, 64) for _ in "qkv"), batch_of("bhsd")))


@pytest.fixture
def checks(monkeypatch) -> list[None]:
    """Returns a list that gets an element for each call that is checked."""
    found: list[None] = []
    checked = of_checks.checked

    def counted(call: Call) -> Any:
        found.append(None)
        return checked(call)

    monkeypatch.setattr(of_checks, "checked", counted)
    return found


def checked(recorder: Recorder, options: Options) -> Any:
    """Returns what is seen of a call that is checked, whatever was before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "key_of", lambda *_: None)
        return recorder.seen(lambda: call(options))


def of_later(recorder: Recorder, before: Options, options: Options) -> Any:
    """Returns what is seen of a call behind calls of another kind."""
    run.plans.clear()
    for _ in range(2):
        recorder.seen(lambda: call(before))
    return recorder.seen(lambda: call(options))


@pytest.mark.parametrize("base", BASES)
def test_a_call_is_checked_once_for_its_kind(base, recorder: Recorder, checks: list[None]) -> None:
    options = BASES[base]
    first = recorder.seen(lambda: call(options))
    assert first[0] and len(run.plans) == len(checks) == 1
    assert ("softcap" in first[0][0][2]) == (base == "all") and first[0][0][2].get("softcap", 1.0) == 1.0
    again = {name: x.clone() if isinstance(x, Tensor) and x.is_contiguous() else x for name, x in options.items()}
    assert recorder.seen(lambda: call(options)) == first
    launches, results = recorder.seen(lambda: call({**again, "scale": 0.25}))
    assert results == first[1] and launches[0][:2] == first[0][0][:2] and launches[0][2]["softmax_scale"] == 0.25
    assert len(run.plans) == len(checks) == 1


@pytest.mark.parametrize("options", [{"layout": "bshd"}, {"schedule": "seed"}, {"softcap": 3}, {"specialize": True}])
def test_these_are_checked_once_too(options, recorder: Recorder, checks: list[None]) -> None:
    options = {**BASES["plain"], **options}
    first = recorder.seen(lambda: call(options))
    assert [recorder.seen(lambda: call(options)) for _ in range(3)] == [first] * 3 and len(checks) == 1


def test_so_is_one_without_a_gradient_of_tensors_that_require_one(recorder: Recorder, checks: list[None]) -> None:
    with torch.no_grad():
        for q in (half(*BASES["plain"]["q"].shape, requires_grad=grad) for grad in (True, False, True)):
            call({**BASES["plain"], "q": q})
    assert len(checks) == 1


def test_so_is_one_through_the_operator(on_cpu: Kernels, checks: list[None]) -> None:
    for _ in range(3):
        torch.ops.tl_attention.forward(**BASES["plain"], window_size=[3, 0], return_lse=True)
    assert len(checks) == len(run.plans) == 1


def test_numpys_scalars_are_pythons(recorder: Recorder, checks: list[None]) -> None:
    pythons = {**BASES["all"], "scale": 0.25}
    numpys = {
        "causal": np.bool_(True),
        "scale": np.float32(0.25),
        "window_size": [np.int64(9), np.array(0)],
        "softcap": np.longdouble(1),
        "return_lse": np.True_,
        "specialize": np.False_,
    }
    first = recorder.seen(lambda: call(pythons))
    assert recorder.seen(lambda: call({**pythons, **numpys})) == first and len(checks) == len(run.plans) == 1
    for name, value in {
        "scale": np.float32(0),
        "causal": np.timedelta64(1, "s"),
        "window_size": np.array([9, 0]),
    }.items():
        with pytest.raises(InputError, match=f"^attention: {name} is "):
            call({**pythons, name: value})


def test_every_argument_has_another_value_here() -> None:
    named = {*inspect.signature(attention).parameters} - {"unnamed", "features"}
    assert {*OTHER} == named | {feature.word for feature in INPUTS}


@pytest.mark.parametrize("gradients", GRAD)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_call_behind_others_does_what_it_does_where_it_is_checked(pair, gradients, recorder: Recorder) -> None:
    before, options = PAIRS[pair]
    with GRAD[gradients]():
        for one, other in ((before, options), (options, before)):
            assert of_later(recorder, one, other) == checked(recorder, other)


def parts_of(key: Any) -> tuple[Any, ...]:
    """Returns a key without tuples in it, but for a tensor's shape or strides. The last parts are features' values."""
    (sizes, *of_tensors), *others, values = key
    return (*sizes, *of_tensors, *others, *values)


# Whether keys may be in parts no argument of `attention` says: test_flash_attn_interface.py shows that it is needed.
IN_PARTS = len(parts_of(KEY)) - len(INPUTS) - 1


@pytest.mark.parametrize("part", sorted({*range(len(parts_of(KEY)))} - {IN_PARTS}))
def test_every_part_of_the_key_is_needed(part, recorder: Recorder, monkeypatch) -> None:
    """The pairs of calls show it if a part of the key is missing."""

    def shorter(call: Call) -> Any:
        key = key_of(call)
        return key and parts_of(key)[:part] + parts_of(key)[part + 1 :]

    expected = {name: checked(recorder, options) for name, (_, options) in PAIRS.items()}
    monkeypatch.setattr(run, "key_of", shorter)
    assert any(of_later(recorder, *PAIRS[name]) != expected[name] for name in PAIRS)


def test_a_launch_lays_out_each_parameter_that_a_kernel_may_take() -> None:
    taken = [parameter.name for parameter in KERNEL_PARAMETERS if parameter.kind not in FOUND]
    assert sorted(NAMES) == sorted(taken) == sorted({*taken})


def test_what_addresses_decide_is_looked_at_in_every_call(recorder: Recorder, checks: list[None]) -> None:
    memory, size = half(5 * 4 * 64 * 64 + 1), (1, 4, 64, 64)

    def at(number: float, more: int = 0) -> Tensor:
        start = int(number * 4 * 64 * 64) + more
        return memory[start : start + 4 * 64 * 64].view(size)

    inputs = at(0), at(1), at(2)
    for number in (3, 3, 4, 3.5):
        attention(*inputs, out=at(number))
    attention(at(1), at(2), at(4), out=at(0))
    attention(at(1), at(2), at(4), out=at(3))
    assert len(checks) == 1
    for name, number in {"q": 0.5, "k": 1, "v": 2.75}.items():
        with pytest.raises(InputError, match=f"out overlaps {name} in memory"):
            attention(*inputs, out=at(number))
    attention(*inputs)
    for name, given in {
        "q": (at(0, 1), at(1), at(2)),
        "k": (at(0), at(1, 1), at(2)),
        "v": (at(0), at(1), at(2, 1)),
    }.items():
        for out in (None, at(4)):
            with pytest.raises(InputError, match=f"{name} starts 2 bytes after a multiple of 16"):
                attention(*given, out=out)
    with pytest.raises(InputError, match="out starts 2 bytes"):
        attention(*inputs, out=at(4, 1))


def test_out_may_lie_between_the_inputs(recorder: Recorder) -> None:
    packed = half(1, 64, 4, 4, 64).transpose(1, 3)
    *inputs, last = packed.unbind(2)
    for _ in range(2):
        # Between each other, yet without an element in common.
        assert attention(*inputs, out=last) is last
    for name, taken in zip("qkv", inputs):
        with pytest.raises(InputError, match=f"out overlaps {name} in memory"):
            attention(*inputs, out=taken)


def test_views_begin_where_the_tensors_do(on_cpu: Kernels, checks: list[None]) -> None:
    for heads, seq in ((3, 20), (1, 20), (3, 1)):
        found = []
        for packed in torch.randn(2, 2, seq, 3, heads, 64, dtype=torch.float16):
            for inputs in (packed.unbind(2), [x.contiguous() for x in packed.unbind(2)]):
                found.append(attention(*inputs, layout="bshd", causal=True))
        assert torch.equal(*found[:2]) and torch.equal(*found[2:]) and not torch.equal(*found[1:3])
    assert len(checks) == 6


def test_a_file_is_read_again_when_it_has_changed(recorder: Recorder, checks: list[None], changed_seed) -> None:
    path = changed_seed("", "\n# As it is.\n")
    options = {**BASES["plain"], "schedule": path}
    (first, *_), _ = recorder.seen(lambda: call(options))
    assert recorder.seen(lambda: call(options))[0] == [first] and len(checks) == 1
    text = path.read_text()
    path.write_text(text.replace("block_N: 128", "block_N: 64"))
    assert path.read_text() != text, "the seed has another block_N"
    (second, *_), _ = recorder.seen(lambda: call(options))
    assert second[0] == load(path) != first[0] and len(checks) == 2
    assert recorder.seen(lambda: call(options))[0] == [second] and len(checks) == 2
    os.unlink(path)
    with pytest.raises(InputError, match="changed.yaml"):
        call(options)


def test_a_relative_path_is_the_one_of_the_folder(recorder: Recorder, seed_path: Path, tmp_path, monkeypatch) -> None:
    found = []
    for folder, block_N in (("a", "128"), ("b", "64")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(
            seed_path.read_text().replace("block_N: 128", f"block_N: {block_N}")
        )
        monkeypatch.chdir(tmp_path / folder)
        found += [recorder.seen(lambda: call({**BASES["plain"], "schedule": "mine.yaml"}))[0][0][0] for _ in range(2)]
    assert [schedule.block_N for schedule in found] == [128, 128, 64, 64]


def test_no_more_plans_are_kept_than_so_many(on_cpu: Kernels, monkeypatch) -> None:
    monkeypatch.setattr(of_plans, "MOST_KEPT", 3)
    inputs = {n: [torch.randn(1, 2, n, 64, dtype=torch.float16) for _ in "qkv"] for n in range(1, 9)}
    expected = {n: attention(*given) for n, given in inputs.items()}
    for n in (*inputs, *inputs, 1, 1, 8):
        assert torch.equal(attention(*inputs[n]), expected[n]) and len(run.plans) <= 3


@pytest.mark.parametrize("lengths", [(0, 64), (64, 0), (70, 60)])
def test_rows_without_a_key_have_a_plan_too(lengths, on_cpu: Kernels, checks: list[None]) -> None:
    for _ in range(2):
        q, k, v = (torch.randn(1, 2, n, 64).half() for n in (lengths[0], lengths[1], lengths[1]))
        found, lse = attention(q, k, v, causal=True, return_lse=True)
        expected, of_rows = attention_and_lse(q, k, v, mask=CAUSAL, scale=64**-0.5, precise=False)
        assert torch.equal(found, expected.half()) and torch.equal(lse, of_rows)
    assert len(checks) == len(run.plans) == 1


def test_a_refused_call_leaves_no_plan(on_cpu: Kernels, monkeypatch) -> None:
    def unbuildable(*_: object) -> None:
        raise InputError("it cannot be built")

    monkeypatch.setattr(compiled, "kernel_of", unbuildable)
    for _ in range(2):
        with pytest.raises(InputError, match="it cannot be built"):
            attention(**BASES["plain"])
    assert not run.plans


@pytest.mark.parametrize("traced", ["compiled", "without data"])
def test_what_is_traced_neither_takes_a_plan_nor_leaves_one(traced, on_cpu: Kernels, monkeypatch) -> None:
    torch._dynamo.reset()
    options = BASES["plain"]
    call(options)
    before, graphs = dict(run.plans), []
    monkeypatch.setattr(of_plans.Plan, "run", lambda *_: pytest.fail("a plan was taken"))
    if traced == "compiled":

        def counted(graph: Any, inputs: Any) -> Callable[..., Any]:
            graphs.append(graph)
            return lambda *given: (half(1),)

        torch.compile(attention, fullgraph=True, backend=counted)(**options)
        assert len(graphs) == 1
    else:
        with FakeTensorMode() as mode:
            found = attention(*map(mode.from_tensor, options.values()))
        assert found.shape == options["q"].shape
    assert run.plans == before


def test_threads_share_plans(on_cpu: Kernels) -> None:
    cases: list[Options] = [
        {"causal": bool(n % 2), "return_lse": True, **{x: torch.randn(1, 2, 20 + n, 64).half() for x in "qkv"}}
        for n in range(6)
    ]
    expected = [call(case) for case in cases]
    run.plans.clear()

    def work(first: int) -> bool:
        order = [(first + n) % len(cases) for n in range(40)]
        return all(all(map(torch.equal, call(cases[n]), expected[n])) for n in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    assert len(run.plans) == len(cases)


@pytest.mark.parametrize("current, entered", [(None, 0), (1, 3)])
def test_another_current_device_is_left_for_the_launch_alone(current, entered, recorder: Recorder, monkeypatch) -> None:
    found: list[Any] = []

    @contextmanager
    def entering(device: Any) -> Any:
        found.append(device)
        yield
        found.append(len(recorder.launches))

    monkeypatch.setattr(of_plans, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device", entering)
    for _ in range(3):
        recorder.launches.clear()
        call(BASES["plain"])
        assert len(recorder.launches) == 1
    # The CPU's index is None.
    assert found == [None, 1] * entered
