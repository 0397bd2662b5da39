"""A kernel's launch is read off the IR of the host function; a change of the IR changes the plan or is refused."""

import functools
from collections.abc import Callable
from typing import Any

import golden
import pytest
from code_mutants import kernels
from golden_kernels import KERNELS
from once import shared

from tl_attention.codeproof.read import host_ir
from tl_attention.compiler import generation
from tl_attention.errors import InputError
from tl_attention.launch.plan import HostPlan, to_json

# TMA descriptors, strides, sizes and scalars of both kinds.
NAME = "best, asked"
CALLED, SET_DEVICE = "tirx.tvm_call_packed", "__tvm_set_device"


def tvm() -> Any:
    """Returns TileLang's own TVM; to import it takes seconds."""
    from tilelang import tvm

    return tvm


def lowered_ir() -> tuple[str, str]:
    """Lowers the kernel as it is compiled, and returns the IR of its host function and of its kernels as JSON."""

    with pytest.MonkeyPatch.context() as patch:
        modules = []
        patch.setattr(generation, "plan_of", lambda *of: modules.extend(of) or host_ir.plan_of(*of))
        code = kernels.lowered(KERNELS[NAME])
    assert code == golden.code(NAME), golden.STALE
    return tuple(map(tvm().ir.save_json, modules))


@functools.cache
def host() -> Any:
    """Returns the module that the host function is."""

    return tvm().ir.load_json(shared("ir", KERNELS[NAME], lowered_ir)[0])


@functools.cache
def kernels_ir() -> Any:
    """Returns the module that the kernels are, which the host function launches."""
    return tvm().ir.load_json(shared("ir", KERNELS[NAME], lowered_ir)[1])


def plan_of(module: Any) -> HostPlan:
    return host_ir.plan_of(module, kernels_ir())


def changed(kind: str, change: Callable[[Any], Any]) -> Any:
    """Returns the host function with nodes of a kind as `change` returns them; for None a node stays as it is."""

    [(variable, function)] = host().functions.items()
    body = tvm().tirx.stmt_functor.ir_transform(function.body, None, change, [f"tirx.{kind}"])
    assert not tvm().ir.structural_equal(body, function.body), "nothing changed"
    return tvm().IRModule({variable: function.with_body(body)})


def bound(name: str, change: Callable[[Any, Any], Any]) -> Any:
    """Changes the binding of a name: `change` gets tirx and the statement."""
    tirx = tvm().tirx

    return changed("Bind", lambda node: change(tirx, node) if node.var.name == name else None)


def called(function: str, change: Callable[[Any, list[Any]], list[Any]]) -> Any:
    """Changes the arguments of a function's calls: `change` gets tirx, and the arguments with the function's name."""
    tirx = tvm().tirx

    def of(node: Any) -> Any:
        there = node.op.name == CALLED and node.args[0].value == function
        return tirx.Call(node.dtype, node.op, change(tirx, [*node.args])) if there else None

    return changed("Call", of)


def put(number: int, value: Callable[[Any, Any], Any]) -> Callable[[Any, list[Any]], list[Any]]:
    """Replaces one argument of a call."""
    return lambda tirx, given: [*given[:number], value(tirx, given[number]), *given[number + 1 :]]


def variable(name: str) -> Any:
    """Returns the variable that is bound to a name."""
    tirx = tvm().tirx

    found: list[Any] = []
    [function] = host().functions.values()
    tirx.stmt_functor.post_order_visit(function.body, lambda n: found.append(n) if type(n).__name__ == "Bind" else None)
    return next(node.var for node in found if node.var.name == name)


def of_value(name: str, old: str, new: str) -> Any:
    """Replaces one variable by another in what a name is bound to."""
    return bound(
        name,
        lambda tirx, node: tirx.Bind(
            node.var, tirx.stmt_functor.substitute(node.value, {variable(old): variable(new)})
        ),
    )


def integer(value: int) -> Callable[[Any, Any], Any]:
    return lambda tirx, before: tirx.IntImm("int32", value)


def named(value: str) -> Callable[[Any, Any], Any]:
    return lambda tirx, before: variable(value)


def test_the_plan_of_the_ir_is_what_is_kept():
    assert to_json(plan_of(host())) == golden.code(NAME).host_plan


TILED, KERNEL = "__tvm_tensormap_create_tiled", "attention_kernel"
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "another device": (lambda: called(SET_DEVICE, put(2, integer(0))), "__tvm_set_device of 2, 0"),
    "another function for the device": (lambda: called(SET_DEVICE, put(0, lambda tirx, _: tirx.StringImm("other"))),
        "calls of other, .*expected __tvm_set_device, any __tvm_tensormap_create_tiled and one kernel"),
    "im2col descriptors": (lambda: called(TILED, put(0, lambda tirx, _: tirx.StringImm("__tvm_tensormap_create_im2col"))),
        "calls of __tvm_set_device, __tvm_tensormap_create_im2col"),
    "no kernel": (lambda: called(KERNEL, put(0, lambda tirx, _: tirx.StringImm(TILED))), "calls of .*ret, expected"),
    "a descriptor with an argument less": (lambda: called(TILED, lambda tirx, given: given[:-1]), "of rank 4 with 23 arguments"),
    "a descriptor of another rank": (lambda: called(TILED, put(3, integer(3))), "of rank 3 with 24 arguments, expected 20"),
    "a descriptor in another's place": (lambda: called(TILED, put(1, named("K_desc"))), "the descriptors K_desc, V_desc, Q_desc"),
    "a descriptor of a descriptor": (lambda: called(TILED, put(4, named("K_desc"))), "a TMA descriptor K_desc of K_desc"),
    "a descriptor where no memory is": (lambda: called(TILED, put(1, named("K"))), "a TMA descriptor K of K"),
    "elements of 4 bytes": (lambda: called(TILED, put(9, integer(4))), "elements 4 bytes apart, expected 2"),
    "a box of a size": (lambda: called(TILED, put(13, named("seq_q"))), "seq_q where a number belongs"),
    "a dimension of an address": (lambda: called(TILED, put(6, named("K"))), "K in 'K', expected one of"),
    "a dimension that may be negative": (lambda: called(TILED, put(6, lambda tirx, size: size - 1)), "Sub in the expression"),
    "a dimension by a choice": (lambda: called(TILED, put(6, lambda tirx, size: tirx.Select(size <= 1, size, size + 1))),
        "Call in the expression 'choose"),
    "a dimension of 16 bits": (lambda: called(TILED, put(6, lambda tirx, size: tirx.Cast("int16", size))), "Call in the expression"),
    "a dimension that is a maximum": (lambda: called(TILED, put(6, lambda tirx, size: tirx.Max(size, size + 1))), "the expression Max"),
    "a dimension that is a text": (lambda: called(TILED, put(6, lambda tirx, size: tirx.StringImm("seq_q"))), "Constant in the"),
    "a name that is an expression": (lambda: called(TILED, put(6, lambda tirx, size: tirx.Var("seq_q * 2", "int32"))),
        "the expression Var seq_q"),
    "a dimension of another variable": (lambda: called(TILED, put(6, lambda tirx, size: tirx.Var("seq_q", "int32"))),
        "the expression Var seq_q"),
    "strides of 32 bits": (lambda: called(KERNEL, put(7, lambda tirx, stride: tirx.Cast("int32", stride))),
        r"a kernel's parameter int32\(Output_batch_stride\), expected one of K, K_batch_stride"),
    "no scalar": (lambda: called(KERNEL, lambda tirx, given: [*given[:14], *given[18:]]), "the kernel takes 19 arguments and 4 of the launch"),
    "a parameter less": (lambda: called(KERNEL, lambda tirx, given: [*given[:14], *given[15:]]), "a kernel's parameter 2"),
    "a number of the launch less": (lambda: called(KERNEL, lambda tirx, given: given[:-2]), "19 arguments and 6 of the launch"),
    "a tensor of another's address": (lambda: of_value("K", "K_handle", "V_handle"), r"K = handle.get\(V_handle, 0, 1\)"),
    "the LSE where the output belongs": (lambda: of_value("LSE", "LSE_handle", "Output_handle"), r"LSE = handle.get\(Output_handle"),
    "a tensor of another argument": (lambda: of_value("attention.K.shape", "K_handle", "V_handle"), r"attention.K.shape = handle.get"),
    "the device of another tensor": (lambda: of_value("dev_id", "Q_handle", "K_handle"), r"dev_id = int32.get\(K_handle, 0, 9\)"),
    "half of a size": (lambda: bound("seq_q", lambda tirx, node: tirx.Bind(node.var, node.value // 2)), "seq_q = "),
    "a scalar's double": (lambda: bound("softcap", lambda tirx, node: tirx.Bind(node.var, node.value * 2.0)), "the expression FloatImm"),
    "a name twice": (lambda: bound("seq_q", lambda tirx, node: tirx.SeqStmt([node, node])), "the statement Bind seq_q"),
    "a size without a name": (lambda: bound("seq_q", lambda tirx, node: tirx.Evaluate(0)), "a kernel's parameter seq_q"),
    "a stride without its check": (lambda: bound("K_row_stride", lambda tirx, node: tirx.Bind(node.var, node.value.args[2])),
        "K_row_stride = "),
    "a loop": (lambda: bound("seq_q", lambda tirx, node: tirx.For(tirx.Var("i", "int32"), 0, 2, tirx.ForKind.SERIAL, node)),
        "the statement For"),
    "a condition": (lambda: bound("K_desc", lambda tirx, node: tirx.IfThenElse(variable("seq_q") <= 1, node, None)), "the statement If"),
    "a check that calls": (lambda: changed("AssertStmt", calling), f"the expression Call {CALLED}|the expression Call"),
    "another attribute": (lambda: changed("AttrStmt", other_attribute), "the statement AttrStmt"),
}  # fmt: skip


def calling(node: Any) -> Any:
    call = tvm().tirx.Call("bool", tvm().ir.Op.get(CALLED), [tvm().tirx.StringImm(SET_DEVICE)])
    return tvm().tirx.AssertStmt(call, node.error_kind, node.message_parts)


def other_attribute(node: Any) -> Any:
    tirx = tvm().tirx

    return tirx.AttrStmt(node.node, "pragma_other", node.value, node.body) if node.attr_key == "device_id" else None


@pytest.mark.parametrize("name", REFUSED)
def test_another_function_is_refused(name):
    make, words = REFUSED[name]
    module = make()
    with pytest.raises(InputError, match=rf"^host code: .*(?:{words}).*: not as TileLang 0.1.15 makes it"):
        plan_of(module)


def test_what_is_no_host_function_is_refused():

    with pytest.raises(InputError, match="host code: 0 functions, expected __tvm_ffi_attention"):
        plan_of(tvm().IRModule({}))


# Of each call, every argument is replaced by others.
OTHERS = {"number": integer(7), "size": named("seq_q"), "stride": named("Q_row_stride"), "tensor": named("Sinks")}
OTHERS |= {"descriptor": named("V_desc"), "scalar": named("softcap")}


@pytest.mark.parametrize("other", OTHERS)
def test_another_argument_is_another_plan_or_refused(other):
    plan, tried = plan_of(host()), 0
    for function, count in {SET_DEVICE: 3, TILED: 25, KERNEL: 26}.items():
        for number in range(1, count):
            try:
                module = called(function, put(number, OTHERS[other]))
            except AssertionError:
                continue
            tried += 1
            try:
                assert plan_of(module) != plan, (function, number)
            except InputError as error:
                assert "host code: " in str(error) and "\n" not in str(error)
    assert tried > 45


def test_a_kernel_that_waits_for_the_one_before_it_begins_early():
    [(variable, function)] = kernels_ir().functions.items()
    waiting = tvm().IRModule({variable: function.with_attr(host_ir.WAITS, 1)})
    assert plan_of(host()).early == () and host_ir.plan_of(host(), waiting).early == (plan_of(host()).kernel,)
