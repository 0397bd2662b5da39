"""The leaderboard's contract: the rules that a file alone can break, each reported with its line; the test lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tl_attention.errors import InputError
from tl_attention.leaderboard.contract import RANKED_LINES, TestLine, read_test_lines, violations

KERNEL = "def custom_kernel(data):\n    return data[0] + 0\n"


def found(text: str) -> list[str]:
    return violations(text.encode())


CLEAN = {
    "smallest": KERNEL,
    "directives": "#!POPCORN leaderboard flashattention\n# words\n#!POPCORN gpus H100 B200\n" + KERNEL,
    "crlf": "#!POPCORN leaderboard flashattention\r\n#!POPCORN gpu H100\r\n" + KERNEL,
    "kernel cache keyed by shape": """
_cache = {}
def custom_kernel(data):
    q, k, v = data
    fn = _cache.get((q.shape, q.dtype))
    if fn is None:
        fn = _cache[q.shape, q.dtype] = compile(q.shape)
    return fn(q, k, v)
""",
    "output allocated in the call": """
import torch
module = None
def custom_kernel(data):
    global module
    if module is None:
        module = load()
    out = torch.empty_like(data[0])
    module.launch(data[0].data_ptr(), data[1].data_ptr(), data[2].data_ptr(), out.data_ptr())
    return out
""",
    "alignment": "def custom_kernel(data):\n    assert data[0].data_ptr() % 16 == 0\n    return data[0].clone()\n",
    "compiler": "import subprocess\nsubprocess.run(['nvcc', '-O3', 'k.cu'])\n" + KERNEL,
    "advice in a message": "HINT = 'run pip install tilelang'\n" + KERNEL,
    "timers read": "import time\nimport torch\nt = time.perf_counter()\ne = torch.cuda.Event()\n" + KERNEL,
    "guarded sys.stdout": """
import sys
if sys.stdout is not None and sys.stdout.isatty():
    pass
x = sys.stdout.encoding if sys.stdout else None
try:
    sys.stdout.flush()
except AttributeError:
    pass
"""
    + KERNEL,
    "own sys.stdout": "import os, sys\nsys.stdout = open(os.devnull, 'w')\nsys.stdout.write('x')\n" + KERNEL,
    "assigned kernel": "import functools\ncustom_kernel = functools.partial(print)\n",
    "imported kernel": "from task import input_t as custom_kernel\n",
    "defaults": "def custom_kernel(data, scale=None, *, causal=False):\n    return data[0].clone()\n",
    "unrelated": "time = 3\nclass A:\n    pass\nA.Event = 1\n" + KERNEL,
}


@pytest.mark.parametrize("text", CLEAN.values(), ids=CLEAN.keys())
def test_clean_file_breaks_no_rule(text: str) -> None:
    assert found(text) == []


# name: (text, start of the violation, words in it). KERNEL has no lines before it unless the text says so.
BROKEN = {
    "word in a comment": ("# a Stream\n" + KERNEL, "line 1: ", "The word 'stream'"),
    "word in code": (KERNEL + "x = torch.cuda.current_stream()\n", "line 3: ", "rejects it anywhere"),
    "late directive": ("\n#!POPCORN gpu H100\n" + KERNEL, "line 2: ", "outside the first comment block"),
    "unknown directive": ("#!POPCORN card H100\n" + KERNEL, "line 1: ", "'card' is unknown, expected one of"),
    "empty directive": ("#!POPCORN\n" + KERNEL, "line 1: ", "'' is unknown"),
    "repeated directive": (
        "#!POPCORN gpu H100\n#!POPCORN gpus B200\n" + KERNEL,
        "line 2: ",
        "'gpus' repeats that of line 1",
    ),
    "directive without value": ("#!POPCORN leaderboard\n" + KERNEL, "line 1: ", "has no value"),
    "directive in lower case": ("#!popcorn gpu H100\n" + KERNEL, "line 1: ", "expected '#!POPCORN'"),
    "syntax": ("def custom_kernel(data:\n", "line 1: ", "not Python"),
    "null byte": ("x = 1\0\n", "", "not Python"),
    "no kernel": ("x = 1\n", "No custom_kernel", "expected `def custom_kernel(data)`"),
    "kernel inside": ("def f():\n    def custom_kernel(data): pass\n", "No custom_kernel", ""),
    "three arguments": ("def custom_kernel(q, k, v):\n    return q + k\n", "line 1: ", "one argument"),
    "no argument": ("def custom_kernel():\n    pass\n", "line 1: ", "one argument"),
    "this package": ("import tl_attention.op\n" + KERNEL, "line 1: ", "no server has"),
    "this package, from": ("from tl_attention import op\n" + KERNEL, "line 1: ", "no server has"),
    "pip by os.system": ("import os\nos.system('pip install -q x')\n" + KERNEL, "line 2: ", "os.system installs"),
    "pip by subprocess": (
        "import subprocess as sp, sys\nsp.check_call([sys.executable, '-m', 'pip', 'install', 'x'])\n" + KERNEL,
        "line 2: ",
        "subprocess.check_call installs",
    ),
    "apt by name": (
        "from subprocess import run\ncommand = ['apt-get', '-y', 'install', 'x']\nrun(args=command)\n" + KERNEL,
        "line 3: ",
        "subprocess.run installs",
    ),
    "conda": ("import os\nos.popen('conda install x')\n" + KERNEL, "line 2: ", "os.popen installs"),
    "pip itself": ("import pip\npip.main(['install', 'x'])\n" + KERNEL, "line 2: ", "pip.main installs"),
    "event replaced": ("import torch\ntorch.cuda.Event = int\n" + KERNEL, "line 2: ", "torch.cuda.Event is replaced"),
    "event by alias": ("from torch import cuda as c\nc.Event = object\n" + KERNEL, "line 2: ", "patched timer"),
    "event's method": (
        "from torch.cuda import Event\nEvent.elapsed_time = lambda a, b: 1.0\n" + KERNEL,
        "line 2: ",
        "torch.cuda.Event.elapsed_time is replaced",
    ),
    "clock replaced": ("import time as t\nt.perf_counter = lambda: 0\n" + KERNEL, "line 2: ", "time.perf_counter"),
    "clock by setattr": ("import time\nsetattr(time, 'time_ns', int)\n" + KERNEL, "line 2: ", "time.time_ns"),
    "clock by mock": (
        "from unittest import mock\nmock.patch('time.perf_counter').start()\n" + KERNEL,
        "line 2: ",
        "time.perf_counter is replaced",
    ),
    "module replaced": ("import sys\nsys.modules['time'] = None\n" + KERNEL, "line 2: ", "sys.modules['time']"),
    "synchronize replaced": (
        "import torch\ntorch.cuda.synchronize = print\n" + KERNEL,
        "line 2: ",
        "torch.cuda.synchronize is replaced",
    ),
    "sys.stdout.write": ("import sys\nsys.stdout.write('x')\n" + KERNEL, "line 2: ", "sys.stdout.write is used"),
    "stdout by from": ("from sys import stdout as o\no.flush()\n" + KERNEL, "line 2: ", "sys.stdout.flush is used"),
    "asked too late": ("import sys\nif sys.stdout.isatty():\n    pass\n" + KERNEL, "line 2: ", "sys.stdout.isatty"),
    "pointer as key": ("c = {}\ndef f(q):\n    c[q.data_ptr()] = 1\n" + KERNEL, "line 3: ", "a pointer cache"),
    "pointer in a tuple": (
        "c = {}\ndef f(q, k):\n    key = (q.data_ptr(), k.data_ptr())\n    return key in c\n" + KERNEL,
        "line 4: ",
        "a pointer cache",
    ),
    "pointers by loop": (
        "c = {}\ndef f(data):\n    key = tuple(t.data_ptr() for t in data)\n    return c.get(key)\n" + KERNEL,
        "line 4: ",
        "a pointer cache",
    ),
    "pointer compared": ("def f(q, last):\n    return q.data_ptr() == last\n" + KERNEL, "line 2: ", "a pointer cache"),
    "pointer in a dict": ("def f(q):\n    return {q.data_ptr(): q}\n" + KERNEL, "line 2: ", "a pointer cache"),
    "id as key": ("c = {}\ndef f(q):\n    return c.setdefault(id(q), 1)\n" + KERNEL, "line 3: ", "a pointer cache"),
    "output by shape": (
        "outs = {}\ndef custom_kernel(data):\n    out = outs.get(data[0].shape)\n    run(data, out)\n    return out\n",
        "line 5: ",
        "a replayed output",
    ),
    "output in a global": (
        "def custom_kernel(data):\n    global last\n    if last is None:\n        last = run(data)\n    return last\n",
        "line 5: ",
        "a replayed output",
    ),
    "output on the function": (
        "def custom_kernel(data):\n    return custom_kernel.out\n",
        "line 2: ",
        "a replayed output",
    ),
    "output in a pair": (
        "kept = {}\ndef custom_kernel(data):\n    fn, out = kept['x']\n    fn(data, out)\n    return out\n",
        "line 5: ",
        "a replayed output",
    ),
    "memoised kernel": (
        "from functools import lru_cache\n@lru_cache(maxsize=None)\n" + KERNEL,
        "line 2: ",
        "functools.lru_cache",
    ),
}


@pytest.mark.parametrize(("text", "start", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_each_rule_is_reported_with_its_line(text: str, start: str, words: str) -> None:
    reported = found(text)
    assert len(reported) == 1, reported
    assert reported[0].startswith(start)
    assert words in reported[0]


def test_size_and_encoding() -> None:
    exact = KERNEL + "#" * (1_000_000 - len(KERNEL))
    assert found(exact) == []
    assert found(exact + "#") == ["The file has 1,000,001 bytes, over the limit of 1,000,000."]
    assert violations(KERNEL.encode() + b"# \xff\n") == ["line 3: Byte 50 is not UTF-8 (invalid start byte)."]


def test_all_broken_rules_are_reported_in_line_order() -> None:
    text = "import sys\nsys.stdout.write('x')\n# stream\n#!POPCORN gpu H100\n"
    reported = found(text)
    assert [message.split(":")[0] for message in reported[1:]] == ["line 2", "line 3", "line 4"]
    assert reported[0].startswith("No custom_kernel")


def test_ranked_lines_parse_back() -> None:
    assert str(RANKED_LINES[0]) == "batch_size: 1; num_heads: 64; seq_len: 1024; head_dim: 128; seed: 1118"
    assert [TestLine.parse(str(line)) for line in RANKED_LINES] == list(RANKED_LINES)
    assert (RANKED_LINES[-1].batch_size, RANKED_LINES[-1].seq_len) == (4, 8192)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tests.txt:3: '' is not `key: integer`"),
        ("batch_size: one", "tests.txt:3: 'batch_size: one' is not `key: integer`"),
        ("batch_size: 1; heads: 2", "tests.txt:3: unknown key 'heads', expected batch_size, num_heads"),
        ("seed: 1; seed: 2", "tests.txt:3: seed is given twice"),
        ("batch_size: 1; seed: 2", "tests.txt:3: num_heads, seq_len, head_dim missing"),
        (
            "batch_size: 0; num_heads: 1; seq_len: 1; head_dim: 1; seed: 0",
            "tests.txt:3: test line: batch_size is 0, expected an integer of at least 1",
        ),
        (
            "batch_size: 1; num_heads: 1; seq_len: 1; head_dim: 1; seed: -1",
            "tests.txt:3: test line: seed is -1, expected an integer of at least 0",
        ),
    ],
)
def test_bad_test_line_says_what_and_where(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        TestLine.parse(text, "tests.txt:3")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_file_of_test_lines(tmp_path: Path) -> None:
    path = tmp_path / "tests.txt"
    path.write_text("\n".join(map(str, RANKED_LINES)) + "\n\n", encoding="utf-8")
    assert read_test_lines(path) == RANKED_LINES
    path.write_text("\n\nnonsense\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"tests\.txt:3: 'nonsense' is not"):
        read_test_lines(path)
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(InputError, match="no test line"):
        read_test_lines(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_test_lines(tmp_path)
