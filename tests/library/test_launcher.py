"""The launcher passes to the driver what TileLang's host code passes, and refuses what a plan does not have."""

from __future__ import annotations

import random
import re
import subprocess
from array import array
from pathlib import Path
from typing import Any

import golden
import pytest
from conftest import python
from golden_kernels import KERNELS
from host_code import CODE, Tensor, arguments, launches
from stand_in import without_launcher
from tiers import sampled

from tl_attention.errors import InputError
from tl_attention.launch import _launcher
from tl_attention.launch.launcher import LIBRARY, TYPES, function_of
from tl_attention.launch.plan import from_json

SOURCE = Path(__file__).with_name("recording_driver.c")
# Clusters, strides, windows; a list; parts of packed sequences; without TMA; pages.
FEW = ("best, asked", "ragged, packed", "short, packed parts", "mma_sync, asked", "best_causal, pages")
CHUNKS = {"few": FEW} | {str(first): [*KERNELS][first : first + 10] for first in range(0, len(KERNELS), 10)}
# Programmatic stream serialization, as `recording_driver.c` writes it.
EARLY = re.compile(r"attribute 6 0100000000[0-9a-f]+ ")


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the driver's stand-in."""
    file = tmp_path_factory.mktemp("driver") / "driver.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(file), str(SOURCE)], check=True)
    return file


def function(name: str, driver: str = LIBRARY) -> Any:
    code = golden.code(name)
    return function_of(code.plan, CODE, code.variant, code.parameters, driver)


@pytest.mark.parametrize("chunk", sampled(CHUNKS, ["few"]))
def test_it_passes_what_tilelangs_host_code_passes(chunk, driver) -> None:
    """TileLang has each kernel with a cluster begin beside the kernel before it, also one that does not wait for it."""
    for name, (source, plan, of_tilelang, ours) in launches(driver, CHUNKS[chunk]).items():
        assert (source, plan) == golden.texts()[name], f"{name}: {golden.STALE} (--all)"
        early = from_json(plan).early
        expected = [
            line if line.startswith("launch ") and line.split()[1] in early else EARLY.sub("", line)
            for line in of_tilelang.splitlines()
        ]
        passed = ours.splitlines()
        for kind in ("attribute", "launch"):
            lines = [[line for line in text if line.startswith(kind)] for text in (expected, passed)]
            # Attributes are set once for each kernel, in no order.
            assert sorted(lines[0]) == sorted(lines[1]) and (kind == "attribute" or lines[0] == lines[1]), name
        kernels = 1 + sum(small is not None for small in (from_json(plan).listing, from_json(plan).merging))
        assert sum(line.startswith("launch") for line in passed) == 2 * kernels, name


def changed(tensor: Tensor, **changes: Any) -> Tensor:
    """Makes a tensor like another one, but for its dtype, shape, strides or device."""
    view = tensor.view
    dtype = next(name for name, of in TYPES.items() if of == (view.code, view.bits))
    given = {"dtype": dtype, "shape": view.shape[: view.ndim], "strides": view.strides[: view.ndim], "device": 0}
    return Tensor(view.data, **(given | changes))


OTHERS: dict[str, tuple[int, dict[str, Any], str]] = {
    "a type": (0, {"dtype": "float16"}, "Q has DLPack data type 2, expected 4"),
    "a wider type": (5, {"dtype": "int32"}, "LSE has DLPack data type 0, expected 2"),
    "dimensions": (1, {"shape": (15, 555, 128), "strides": (71040, 128, 1)}, "K has dimensions 3, expected 4"),
    "a length": (1, {"shape": (2, 3, 555, 120)}, "K has size 120, expected 128"),
    "another length": (2, {"shape": (2, 3, 556, 128)}, "V has size 556, expected 555"),
    "heads": (2, {"shape": (2, 4, 555, 128)}, "V has size 4, expected 3"),
    "another ratio of heads": (1, {"shape": (2, 4, 555, 128)}, "Q has size 9, expected 12"),
    "a last stride": (3, {"strides": (76800, 38400, 256, 2)}, "Output has stride 2, expected 1"),
    "a stride": (5, {"strides": (9000, 301, 1)}, "LSE has stride 301, expected 300"),
    "a stride of 8 bytes": (
        0,
        {"strides": (76800, 38400, 132, 1)},
        "Q has a stride in bytes, modulo 16, 8, expected 0",
    ),
    "a device": (2, {"device": 1}, "V has device 1, expected 0"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_tensor_that_the_plan_does_not_have_is_refused(name) -> None:
    place, changes, words = OTHERS[name]
    given = [*arguments(KERNELS["best, asked"])]
    given[place] = changed(given[place], **changes)
    with pytest.raises(ValueError, match=f"^attention: {words}$"):
        function("best, asked")(*given)


@pytest.mark.parametrize(
    "shape, strides, words",
    [
        ((5, 55, 3, 104), (39001, 312, 104, 1), "K has a stride of pages, modulo that of rows, 1, expected 0"),
        ((5, 55, 3, 104), (156, 312, 104, 1), "K has a stride of pages, modulo that of rows, 156, expected 0"),
        ((5, 55, 3, 104), (0, 0, 104, 1), "K has a stride of pages, modulo that of rows, 0, expected 0"),
        ((2, 5, 55, 3, 104), (1, 1, 312, 104, 1), "K has dimensions 5, expected 3"),
    ],
)
def test_pages_that_are_no_rows_are_refused(shape, strides, words) -> None:
    given = [*arguments(KERNELS["best_causal, pages"], in_pages=True)]
    given[1] = changed(given[1], shape=shape, strides=strides)
    with pytest.raises(ValueError, match=f"^attention: {words}$"):
        function("best_causal, pages")(*given)


def test_other_arguments_are_refused() -> None:
    call, given = function("best, asked"), [*arguments(KERNELS["best, asked"])]
    with pytest.raises(TypeError, match=f"a kernel takes {len(given)} arguments, 1 were given"):
        call(given[0])
    with pytest.raises(TypeError, match="attention: 'q' is no tensor"):
        call("q", *given[1:])
    with pytest.raises(TypeError, match="must be real number, not str"):
        call(*given[:4], "scale", *given[5:])
    sides = [number for number, one in enumerate(given) if isinstance(one, int)]
    for side, error, words in ((2**31, ValueError, "more than 32 bits, 2147483648, expected"), (0.5, TypeError, "int")):
        with pytest.raises(error, match=words):
            call(*given[: sides[0]], side, *given[sides[0] + 1 :])


def test_a_plan_of_other_parameters_is_refused() -> None:
    code = golden.code("best")
    with pytest.raises(
        InputError, match="the kernel takes Q, K, V, Output, softmax_scale, group, workers: not what its caller gives"
    ):
        function_of(code.plan, CODE, code.variant, code.parameters[:-1])


def test_numbers_that_are_no_plan_are_refused_and_harm_nothing(monkeypatch) -> None:
    noted: list[tuple[Any, ...]] = []
    monkeypatch.setattr(_launcher, "function", lambda *of: noted.append(of))
    for name in FEW:
        function(name)
    monkeypatch.undo()
    draw, refused = random.Random("plans"), 0
    for _ in range(4000):
        names, kernels, data, code = draw.choice(noted)
        numbers = array("q", data)
        for _ in range(draw.choice((1, 1, 2))):
            place = draw.randrange(min(len(numbers), draw.choice((4, 40, len(numbers)))))
            numbers[place] = draw.choice((-1, 0, 1, 2, 7, 48, 2**31, 2**62, numbers[place] + 1))
        cut = numbers[: draw.choice((None, None, None, -1, draw.randrange(len(numbers))))]
        try:
            call = _launcher.function(names, kernels, cut.tobytes(), code)
        except ValueError as error:
            assert str(error) == "attention: these numbers are no plan's"
            refused += 1
            continue
        # Their launches check arguments, too, and here end at the latest where there is no driver.
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            call(*range(len(names)))
    assert 1000 < refused < 4000


FAILING = """
import ctypes, golden, host_code, sys
from pathlib import Path
from host_code import KERNELS, arguments, contiguous
from test_launcher import changed, function
driver, given = ctypes.CDLL(sys.argv[1]), [*arguments(KERNELS["best"])]
# The stride of a dimension of length 1 says nothing.
for place in range(4):
    _, *lengths = given[place].view.shape[:4]
    given[place] = changed(given[place], shape=(1, *lengths), strides=(13, *contiguous((1, *lengths))[1:]))
for what in ("cuModuleLoadData", "cuTensorMapEncodeTiled", "cuLaunchKernelEx", "nothing"):
    driver.fail(what.encode())
    call = function("best", sys.argv[1])
    try:
        host_code.write_down(driver, Path(sys.argv[2]), golden.code("best").source, call, given)
    except RuntimeError as error:
        print(error)
"""


def test_a_failure_of_the_driver_is_told_in_its_word(driver, tmp_path) -> None:
    done = python("-c", FAILING, str(driver), str(tmp_path / "record"), cwd=Path(__file__).parent)
    told = [
        f"attention: {what}: CUDA_ERROR_STAND_IN (1)"
        for what in ("cuModuleLoadData", "cuTensorMapEncodeTiled", "cuLaunchKernelEx")
    ]
    assert done.stdout.splitlines() == told, done.stderr


def test_a_driver_that_is_too_old_is_told_in_one_line(driver) -> None:
    for_cuda_12 = """
import ctypes, sys
from test_launcher import function
ctypes.CDLL(sys.argv[1]).fail(b"cuDriverGetVersion")
function("best", sys.argv[1])
"""
    done = python("-c", for_cuda_12, str(driver), cwd=Path(__file__).parent)
    expected = "InputError: driver: it runs CUDA up to 12.8, expected one for CUDA 13, which is 580 or newer\n"
    assert done.returncode and done.stderr.endswith(expected), done.stderr


def test_where_it_is_not_built_one_line_says_how(monkeypatch) -> None:
    without_launcher(monkeypatch)
    call = function("best")
    with pytest.raises(InputError, match="^launcher: launch/launcher.c is not built here, expected a C compiler"):
        call()
