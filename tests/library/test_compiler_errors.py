"""If a kernel cannot be built, the reason is the compiler's own first error, from texts of nvcc and TileLang."""

import importlib
import logging

import pytest
from mutations import shipped
from tiers import exhaustive

from tl_attention.compiler.compile import compile_kernel
from tl_attention.compiler.compiler_errors import LONGEST, telling_line
from tl_attention.errors import InputError
from tl_attention.lab.machine_code.sass import cuobjdump
from tl_attention.problem.variant import Variant

KERNEL = 'extern "C" __global__ void copy(float* x) {\n  // error: not an error of the compiler\n  x[0] = 1;%s\n}\n'
WARNED = "__device__ int unused() { int x; }\n"
INCOMPATIBLE = '"CUDA compiler and CUDA toolkit headers are incompatible, please check your include paths"'

# What nvcc is given (code, arch), and the reason, after the folder of the temporary file.
BROKEN = {
    "a syntax error behind warnings": (
        WARNED + "this is no C++;\n" + KERNEL % "",
        "sm_90a",
        r"^nvcc: \S+tvm_kernels.cu\(2\): error: expected a decl",
    ),
    "a header that is missing": (
        "#include <no_such_header.h>\n" + KERNEL % "",
        "sm_90a",
        r"^nvcc: \S+tvm_kernels.cu:1:10: fatal error: no_such_header.h: No such file or directory$",
    ),
    "headers of another toolkit": (
        f"#error {INCOMPATIBLE}\n" + KERNEL % "",
        "sm_90a",
        rf"^nvcc: \S+tvm_kernels.cu:1:2: error: #error {INCOMPATIBLE}$",
    ),
    "an instruction that ptxas does not know": (
        KERNEL % ' asm volatile("no.such.instruction;");',
        "sm_90a",
        r"^nvcc: ptxas \S+\.ptx, line \d+; error +: Unknown modifier '.such'$",
    ),
    "an architecture that nvcc does not know": (
        KERNEL % "",
        "sm_10",
        "^nvcc: nvcc fatal +: Unsupported gpu architecture 'sm_10'$",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_nvccs_first_error_is_the_reason(name):
    from tilelang.contrib import nvcc

    code, arch, words = BROKEN[name]
    with pytest.raises(RuntimeError) as raised:
        nvcc.compile_cuda(code, "cubin", [f"-arch={arch}"])
    assert "Compilation error:" in str(raised.value)
    with pytest.raises(InputError, match=words):
        raise InputError(telling_line(raised.value))


@pytest.mark.parametrize(
    "script, reason",
    [
        ("echo 'sh: 1: nvcc: not found'; exit 127", "nvcc: sh: 1: nvcc: not found"),
        (
            "echo 'cc1plus: out of memory allocating 65536 bytes'; exit 1",
            "nvcc: cc1plus: out of memory allocating 65536 bytes",
        ),
        # Without a host compiler.
        (
            "echo 'None: No such file or directory'; echo 'nvcc fatal   : Failed to preprocess host compiler properties.'; "
            "exit 1",
            "nvcc: None: No such file or directory; nvcc fatal   : Failed to preprocess host compiler properties.",
        ),
        ("exit 1", "nvcc: it failed and printed nothing"),
    ],
)
def test_an_nvcc_that_dies_without_an_error_line_is_quoted(script, reason, tmp_path, monkeypatch):
    from tilelang.contrib import nvcc

    program = tmp_path / "nvcc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(nvcc, "get_nvcc_compiler", lambda: str(program))
    with pytest.raises(RuntimeError) as raised:
        nvcc.compile_cuda(KERNEL % "", "cubin", ["-arch=sm_90a"])
    assert telling_line(raised.value) == reason


def test_a_missing_nvcc_is_named(monkeypatch):
    """TileLang's call raises a RuntimeError with the text of Python's error."""
    from tilelang.contrib import nvcc

    monkeypatch.setattr(nvcc, "get_nvcc_compiler", lambda: "/nowhere/bin/nvcc")
    with pytest.raises(FileNotFoundError) as raised:
        nvcc.compile_cuda(KERNEL % "", "cubin", ["-arch=sm_90a"])
    text = "[Errno 2] No such file or directory: '/nowhere/bin/nvcc'"
    assert telling_line(RuntimeError(str(raised.value))) == f"RuntimeError: {text}"


@pytest.mark.parametrize(
    "error, reason",
    [
        (
            ValueError("Check failed: n > 0 is false: no rows\n  3 |   T.copy(A, B)\n    |   ^"),
            "ValueError: Check failed: n > 0 is false: no rows",
        ),
        (
            RuntimeError("error: layouts differ\n --> kernel.py:7:3\n   |\n 7 |   x\n   |   ^"),
            "RuntimeError: error: layouts differ",
        ),
        (
            RuntimeError("Traceback (most recent call last):\n  File x, line 3, in f\nKeyError: 'a'"),
            "RuntimeError: KeyError: 'a'",
        ),
        (RuntimeError("\n   |   ^\n"), "RuntimeError: |   ^"),
        (KeyError(), "KeyError"),
        (RuntimeError("x" * 1000), "RuntimeError: " + "x" * LONGEST),
    ],
)
def test_of_tilelangs_errors_the_words_are_shown_and_not_the_code(error, reason):
    assert telling_line(error) == reason


@exhaustive
def test_a_pipeline_that_tilelang_cannot_lower_says_so():
    """Three stages of one group give the real error, from the code generator."""
    schedule = shipped()["source_order"].model_copy(update={"num_stages": 3, "block_N": 64})
    with pytest.raises(InputError) as error:
        compile_kernel(schedule, Variant(64, "float16"))
    told = str(error.value)
    assert told.startswith(f"{schedule.label}: TileLang cannot compile it: TileLang 0.1.15 cannot lower this pipeline")
    assert told.endswith("use fewer buffers (TypeError: Downcast from tirx.Sub to ir.IntImm failed.)")


@pytest.fixture
def lowering_fails(monkeypatch):
    """Has TileLang's lowering do something else, and leaves no kernel that is finished."""

    def by(fails) -> str:
        monkeypatch.setattr(importlib.import_module("tilelang.engine.lower"), "lower_to_host_device_ir", fails)
        monkeypatch.setenv("TILELANG_DISABLE_CACHE", "1")
        seed = shipped()["seed"]
        with pytest.raises(InputError) as error:
            compile_kernel(seed, Variant(64, "float16"))
        return str(error.value).removeprefix(f"{seed.label}: TileLang cannot compile it: ")

    return by


def test_the_reason_of_a_kernel_is_that_of_its_compiler(lowering_fails):
    def fails(*arguments):
        raise RuntimeError("extern ...\nCompilation error:\nx.cu(1): error: expected a ;\n\nCommand: nvcc x.cu\n")

    assert lowering_fails(fails) == "nvcc: x.cu(1): error: expected a ;"


FULL = "/tmp/x: No space left on device"
LINKED = f"Compilation error:\ng++: error: {FULL}\n\nCommand line: g++ -shared -o /tmp/x\n"


def test_on_a_full_disk_nothing_is_printed_and_the_reason_is_one_line(lowering_fails, capfd):
    """The full disk has TileLang's cache, and TileLang logs that, or the temporary files, where TileLang links."""

    def fails(*arguments):
        for log in ("tilelang", "tilelang.cache.binary_cache", "tilelang.cache.kernel_cache"):
            logging.getLogger(log).error("Error during atomic cache save\n%s", LINKED)
        raise RuntimeError(LINKED)

    assert lowering_fails(fails) == f"nvcc: g++: error: {FULL}"
    assert capfd.readouterr() == ("", "")


def test_a_host_function_of_another_form_is_a_refusal(lowering_fails):
    def fails(*arguments):
        from tilelang import tvm

        return tvm.IRModule({}), tvm.IRModule({})

    assert lowering_fails(fails).startswith(
        "the kernel that TileLang 0.1.15 generates is not safe: host code: 0 functions, expected __tvm_ffi_attention: "
    )


def test_a_disassembler_that_fails_says_why():
    with pytest.raises(InputError, match=r"^cuobjdump --dump-sass failed, exit code \d+: \S"):
        cuobjdump(b"no cubin", "--dump-sass")
