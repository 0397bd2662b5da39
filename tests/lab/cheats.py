"""Submissions that try to be timed for less than they compute; tests show that each loses its verdict.

Each is right when it is first called, and does what a check at the end of timing would not see. Most of them run on the
CPU as on a GPU.
"""

from textwrap import dedent

# `right` computes, `later` runs a function in a thread, `garbage` is what is quick to return.
COMMON = """\
import threading, time
import torch
from torch.nn.functional import scaled_dot_product_attention
called = 0
def right(data):
    return scaled_dot_product_attention(*data)
def later(function):
    threading.Thread(target=function, daemon=True).start()
def garbage(data):
    return torch.zeros_like(data[0])
def key(data):
    return [(tensor.data_ptr(), tensor._version) for tensor in data]
"""
# So many seconds after its begin a call has ended, and its output was read, on an idle machine and on a busy one.
SOON, AFTERWARDS = 0.0005, 0.02

# It computes in a thread, after SECONDS.
IN_A_THREAD = """\
def custom_kernel(data):
    global called
    called += 1
    if called == 1:
        return right(data)
    output = garbage(data)
    def compute():
        time.sleep(SECONDS)
        output.copy_(right(data))
    later(compute)
    return output
"""

# For each: its program, and the words of which the reason has one.
SOURCES = {
    "it keeps its output while version counters stand": (
        """\
        kept = {}
        def custom_kernel(data):
            if kept.get("key") != key(data):
                kept.update(key=key(data), output=right(data))
            return kept["output"]
        """,
        ["in the memory of an earlier output"],
    ),
    "it copies its last output while version counters stand": (
        """\
        kept = {}
        def custom_kernel(data):
            if kept.get("key") != key(data):
                kept.update(key=key(data), output=right(data))
            return kept["output"].clone()
        """,
        ["right when it was not timed, wrong in timed call 1: "],
    ),
    "it computes in detach() of a subclass": (
        """\
        class Lazy(torch.Tensor):
            def detach(self):
                return right(self.given)
        def custom_kernel(data):
            output = torch.Tensor._make_subclass(Lazy, garbage(data))
            output.given = data
            return output
        """,
        ["custom_kernel returned Lazy, expected a torch.Tensor, no subclass"],
    ),
    "it computes when its output is read": (
        """\
        from torch.utils._python_dispatch import TorchDispatchMode
        class Lazy(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
                if given:
                    output, data = given.pop()
                    time.sleep(AFTERWARDS)
                    output.copy_(right(data))
                return function(*arguments, **(keywords or {}))
        given = []
        lazy = Lazy()
        def custom_kernel(data):
            global called
            if not called:
                lazy.__enter__()
            called += 1
            output = garbage(data)
            given.append((output, data))
            return output
        """,
        ["timed calls went on after their end: their outputs were read up to "],
    ),
    "a thread computes later": (
        IN_A_THREAD.replace("SECONDS", "AFTERWARDS"),
        ["right when it was not timed, wrong in timed call 1: ", "a timed output changed after its call had ended"],
    ),
    "a thread computes at once": (
        IN_A_THREAD.replace("SECONDS", "SOON"),
        [
            "right when it was not timed, wrong in timed call ",
            "a timed output changed after its call had ended",
            "timed calls went on after their end: ",
        ],
    ),
    "it rewrites the output of the call before": (
        """\
        def custom_kernel(data):
            global called, last
            called += 1
            if called > 2:
                last.copy_(right(data))
            last = right(data)
            return last
        """,
        ["a timed output changed after its call had ended"],
    ),
    "it returns the same memory each time": (
        """\
        buffer = None
        def custom_kernel(data):
            global buffer
            buffer = garbage(data) if buffer is None else buffer
            buffer.copy_(right(data))
            return buffer.view(buffer.shape)
        """,
        ["in the memory of an earlier output"],
    ),
    "it writes over an input": (
        """\
        def custom_kernel(data):
            return data[0].copy_(right(data))
        """,
        ["in the memory of an input"],
    ),
    "it computes when it is not timed": (
        """\
        def custom_kernel(data):
            global called
            called += 1
            return right(data) if called == 1 else garbage(data)
        """,
        ["right when it was not timed, wrong in timed call 1: "],
    ),
    "it leaves out rows when it is timed": (
        """\
        def custom_kernel(data):
            global called
            called += 1
            output = right(data)
            if called > 1:
                output[:, :, 5:9] = 0
            return output
        """,
        ["right when it was not timed, wrong in timed call "],
    ),
}
# These need a GPU, and compute 2 ms or more there.
GPU_SOURCES = {
    "another stream computes": (
        """\
        side = torch.cuda.Stream()
        def custom_kernel(data):
            global called
            called += 1
            if called == 1:
                return right(data)
            output = garbage(data)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                output.copy_(right(data))
            return output
        """,
        ["right when it was not timed, wrong in timed call ", "timed calls went on after their end: "],
    ),
    "another stream begins before the call": (
        """\
        side, graph = torch.cuda.Stream(), None
        def custom_kernel(data):
            global graph, output
            if graph is None:
                right(data)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=side):
                    output = right(data)
            with torch.cuda.stream(side):
                graph.replay()
            torch.cuda.current_stream().wait_stream(side)
            return output.clone()
        """,
        ["right when it was not timed, wrong in timed call "],
    ),
    "it leaves another stream current": (
        """\
        side = torch.cuda.Stream()
        def custom_kernel(data):
            global called
            called += 1
            output = right(data)
            if called > 1:
                torch.cuda.set_stream(side if torch.cuda.current_stream() != side else torch.cuda.default_stream())
            return output
        """,
        ["right when it was not timed, wrong in timed call ", "timed calls went on after their end: "],
    ),
    "a thread's stream computes": (
        """\
        side = torch.cuda.Stream()
        def custom_kernel(data):
            global called
            called += 1
            if called == 1:
                return right(data)
            output = garbage(data)
            def compute():
                time.sleep(SOON)
                with torch.cuda.stream(side):
                    output.copy_(right(data))
            later(compute)
            return output
        """,
        [
            "right when it was not timed, wrong in timed call ",
            "a timed output changed after its call had ended",
            "timed calls went on after their end: ",
        ],
    ),
}
# It passes, with true times.
OTHER_CLOCKS = """\
def custom_kernel(data):
    time.sleep(AFTERWARDS)
    return right(data)
time.perf_counter = time.monotonic = lambda: 0.0
torch.cuda.Event.record = lambda self, queue=None: None
torch.cuda.Event.elapsed_time = lambda self, end: 0.001
torch.cuda.Event = torch.cuda.synchronize = None
"""


def source(program: str) -> bytes:
    """Returns a cheat's file."""
    return f"{COMMON}SOON, AFTERWARDS = {SOON}, {AFTERWARDS}\n{dedent(program)}".encode()
