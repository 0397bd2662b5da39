"""This module reads the host function that TileLang 0.1.15 generates as C: its arguments, and the calls that it makes.

The function checks its arguments and defines names on the way. Then it fills the slots of an argument stack one by one
and calls a function, again and again: one call sets the device, one makes each TMA descriptor, one launches the kernel.
Every line of it is of a form below, or the code is refused, so a TileLang that writes its host code in another way
gives an error and never a wrong launch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tl_attention.errors import InputError

# What stands for varying text in the forms. An expression of a check assigns nothing, so it changes nothing.
WORDS = {
    "CONDITION": r"[\w ()*/%+\[\].!|]+(?:(?:==|<=|>>|&&)[\w ()*/%+\[\].!|]+)*",
    "CONDVAL": r"condval(?:_\d+)?",
    "LINES": r"(?:    (?!.*\breturn\b).*\n)*",
    "COUNT": r"\d+",
    "NAME": r"\w+",
    "NUMBER": r"\d+",
    "SLOT": r"\d+",
    "TYPE": r"int32_t|void\*|float|bool",
    "VALUE": r"[^;\n]+",
    "VARIABLE": r"\w+",
}


def form(example: str) -> re.Pattern[str]:
    """Turns an example in C into a regular expression, in which words such as NAME or COUNT stand for varying text.

    Each of WORDS in the example is a group, and stands for the same text wherever it recurs.
    """
    pattern = re.escape(example.removeprefix("\n"))
    for word, varying in WORDS.items():
        before, found, after = pattern.partition(word)
        if found:
            pattern = f"{before}(?P<{word}>{varying}){after.replace(word, f'(?P={word})')}"
    return re.compile(pattern)


START = form("""
int32_t __tvm_ffi_attention(void* self_handle, void* args, int32_t num_args, void* result);
#ifdef __cplusplus
extern "C"
#endif
int32_t __tvm_ffi_attention(void* self_handle, void* args, int32_t num_args, void* result) {
  TL_ALIGN(128) TVMFFIAny stack[COUNT];
  void* stack_ffi_any = stack;
""")
END = form("""
  return 0;
}
""")

# The checks. One that fails launches nothing; one that holds does nothing.
DEFINITION = form("""
  TYPE NAME = VALUE;
""")
CHECK = form("""
  if (!(CONDITION)) {
LINES    return -1;
  }
""")
STRIDE = form("""
  int32_t CONDVAL;
  if ((attention_NAME_strides == NULL)) {
    CONDVAL = 1;
  } else {
    CONDVAL = ((int32_t)((int64_t*)attention_NAME_strides)[NUMBER]);
  }
""")
# A stride that the kernel reads; those that are checked have 32 bits.
READ_STRIDE = form("""
  int64_t CONDVAL;
  if ((attention_NAME_strides == NULL)) {
    CONDVAL = (int64_t)1;
  } else {
    CONDVAL = ((int64_t*)attention_NAME_strides)[NUMBER];
  }
  int64_t VARIABLE = CONDVAL;
""")
# A check of what the kernel assumes of a stride; it stands behind the call that sets the device.
ASSUMED = form("""
  if (!(((VARIABLE % (int64_t)NUMBER) == (int64_t)0))) {
LINES    return -1;
  }
""")

# What the checks define: names for each argument, in order, the device, which is the first tensor's, and the sizes.
ARGUMENT = re.compile(r"  int32_t (\w+?)(_handle)?_type_index = .+;\n")
TENSOR = """
  int32_t NAME_handle_type_index = (((TVMFFIAny*)args)[SLOT].type_index);
  void* NAME_handle = ((NAME_handle_type_index == 70) ? \
((void*)((char*)(((TVMFFIAny*)args)[SLOT].v_ptr) + 24)) : (((TVMFFIAny*)args)[SLOT].v_ptr));
  bool attention_NAME_is_null = (NAME_handle == NULL);
  void* attention_NAME_shape = (((DLTensor*)NAME_handle)[0].shape);
  void* attention_NAME_strides = (((DLTensor*)NAME_handle)[0].strides);
  void* NAME = (((DLTensor*)NAME_handle)[0].data);
"""
FLOAT = """
  int32_t NAME_type_index = (((TVMFFIAny*)args)[SLOT].type_index);
  float NAME = ((NAME_type_index == 3) ? \
((float)(((TVMFFIAny*)args)[SLOT].v_float64)) : ((float)(((TVMFFIAny*)args)[SLOT].v_int64)));
"""
INTEGER = """
  int32_t NAME_type_index = (((TVMFFIAny*)args)[SLOT].type_index);
  int32_t NAME = ((int32_t)(((TVMFFIAny*)args)[SLOT].v_int64));
"""
DEVICE = """
  int32_t dev_id = (((DLTensor*)NAME_handle)[0].device.device_id);
"""
SIZE = re.compile(r"  int32_t (\w+) = \(\(int32_t\)\(\(int64_t\*\)attention_(\w+)_shape\)\[(\d+)\]\);\n")

# A call: the memory of the descriptor that it makes, if it makes one; its arguments in order; and the rest.
DESCRIPTOR = form("""
  TL_ALIGN(128) TVMFFIAny stack_NUMBER[16];
  void* NAME_desc = stack_NUMBER;
""")
SLOTS: dict[Literal["int", "pointer", "float"], re.Pattern[str]] = {
    "int": form("""
  (((TVMFFIAny*)stack_ffi_any)[SLOT].type_index) = 1;
  (((TVMFFIAny*)stack_ffi_any)[SLOT].zero_padding) = 0;
  (((TVMFFIAny*)stack_ffi_any)[SLOT].v_int64) = VALUE;
"""),
    "pointer": form("""
  if (VALUE == NULL) {
    (((TVMFFIAny*)stack_ffi_any)[SLOT].type_index) = 0;
  } else {
    (((TVMFFIAny*)stack_ffi_any)[SLOT].type_index) = 4;
  }
  (((TVMFFIAny*)stack_ffi_any)[SLOT].zero_padding) = 0;
  (((TVMFFIAny*)stack_ffi_any)[SLOT].v_int64) = 0;
  (((TVMFFIAny*)stack_ffi_any)[SLOT].v_ptr) = VALUE;
"""),
    "float": form("""
  (((TVMFFIAny*)stack_ffi_any)[SLOT].type_index) = 3;
  (((TVMFFIAny*)stack_ffi_any)[SLOT].zero_padding) = 0;
  (((TVMFFIAny*)stack_ffi_any)[SLOT].v_float64) = VALUE;
"""),
}
CALL = form("""
  (((TVMFFIAny*)stack_ffi_any)[COUNT].type_index) = 0;
  (((TVMFFIAny*)stack_ffi_any)[COUNT].zero_padding) = 0;
  (((TVMFFIAny*)stack_ffi_any)[COUNT].v_int64) = (int64_t)0;
  if (NAME_packed == NULL) {
    if (TVMBackendGetFuncFromEnv(__tvm_ffi__library_ctx, "NAME", &NAME_packed) != 0) {
      return -1;
    }
  }
  TVMFFIAny result_NUMBER;
  result_NUMBER.type_index = kTVMFFINone;
  result_NUMBER.zero_padding = 0;
  result_NUMBER.v_int64 = 0;
  if (TVMFFIFunctionCall(NAME_packed, (TVMFFIAny*) stack_ffi_any, COUNT, &result_NUMBER) != 0) {
    return -1;
  }
""")


@dataclass(frozen=True)
class Dimension:
    """A Dimension is a named size or stride that the host reads at run time off dimension `axis` of a tensor.

    Strides count elements.
    """

    name: str
    tensor: str
    axis: int


@dataclass(frozen=True)
class Arguments:
    """Arguments are the names of what the host function is called with, in order, and the sizes and strides it reads.

    `tensors` are the arguments that are tensors, `integers` those that are whole numbers; `sizes` and `strides` are what is
    read off the tensors.
    """

    names: tuple[str, ...]
    tensors: frozenset[str]
    integers: frozenset[str]
    sizes: tuple[Dimension, ...]
    strides: tuple[Dimension, ...]

    @property
    def size_names(self) -> frozenset[str]:
        return frozenset(size.name for size in self.sizes)

    @property
    def stride_names(self) -> frozenset[str]:
        return frozenset(stride.name for stride in self.strides)


@dataclass(frozen=True)
class Slot:
    """A Slot is one argument of a call in the host code, its kind (int, pointer or float) and its C text."""

    kind: Literal["int", "pointer", "float"]
    text: str


@dataclass(frozen=True)
class Call:
    """A Call is one call in the host code, with the function's name and its arguments as written.

    `descriptor` is the TMA descriptor that has been given memory right before the call.
    """

    function: str
    descriptor: str | None
    slots: tuple[Slot, ...]


def read_host_source(source: str) -> tuple[Arguments, tuple[Call, ...]]:
    """Parses the C of a generated host function, and returns its Arguments and the calls that it makes, in order.

    Raises InputError for code that TileLang 0.1.15 does not write.
    """
    starts = list(START.finditer(source))
    launch = source.find("(((TVMFFIAny*)stack_ffi_any)[")
    if len(starts) != 1 or launch < 0:
        raise unknown("no kernel launch")
    launch = source.rindex("\n", 0, launch) + 1
    arguments = _arguments(list(_definitions(source, starts[0].end(), launch)))
    calls = tuple(_calls(source, launch))
    needed = 1 + max(len(call.slots) for call in calls)
    if starts[0]["COUNT"] != str(needed):
        raise unknown(f"an argument stack of {starts[0]['COUNT']} slots, expected {needed}")
    return arguments, calls


def unknown(what: str) -> InputError:
    """Returns the InputError that host code is not as TileLang 0.1.15 writes it; `what` names what is at fault."""
    return InputError(f"host code: {what}: not in the form that TileLang 0.1.15 writes, so the launch cannot be read")


def _unread(source: str, at: int, where: str) -> InputError:
    line = source[at:].partition("\n")[0].strip()
    return unknown(f"{where}, from line {source.count(chr(10), 0, at) + 1} on, {line[:120]!r}")


def _definitions(source: str, at: int, end: int) -> Iterator[str]:
    """Yields the lines of host code, from `at` to `end`, that define a name; the other lines must be known checks.

    Raises InputError for any other line, and for a second definition of a name.
    """
    names: set[str] = set()
    while at < end:
        if match := DEFINITION.match(source, at, end):
            _once(match["NAME"], names)
            yield match[0]
        elif match := READ_STRIDE.match(source, at, end):
            _once(match["VARIABLE"], names)
            yield match[0]
        else:
            match = CHECK.match(source, at, end) or STRIDE.match(source, at, end)
        if match is None:
            raise _unread(source, at, "the checks of the arguments")
        at = match.end()


def _once(name: str, names: set[str]) -> None:
    if name in names:
        raise unknown(f"a second definition of {name}")
    names.add(name)


def _arguments(lines: list[str]) -> Arguments:
    """Returns the host function's Arguments from its definitions; raises InputError if one is missing or unknown."""
    found = [match for line in lines if (match := ARGUMENT.fullmatch(line))]
    tensors = [match[1] for match in found if match[2]]
    if not tensors:
        raise unknown("no tensor among the arguments")
    integers = frozenset(
        match[1] for match in found if not match[2] and any(f"int32_t {match[1]} = " in line for line in lines)
    )
    forms = [
        (TENSOR if match[2] else INTEGER if match[1] in integers else FLOAT)
        .replace("NAME", match[1])
        .replace("SLOT", str(slot))
        for slot, match in enumerate(found)
    ]
    expected = [line for text in (*forms, DEVICE.replace("NAME", tensors[0])) for line in re.findall(r".+\n", text)]
    if missing := [line for line in expected if line not in lines]:
        raise unknown(f"no definition {missing[0].strip()!r}")
    sizes, strides = [], []
    for line in lines:
        if (match := SIZE.fullmatch(line)) and match[2] in tensors:
            sizes.append(Dimension(match[1], match[2], int(match[3])))
        elif (match := READ_STRIDE.fullmatch(line)) and match["NAME"] in tensors:
            strides.append(Dimension(match["VARIABLE"], match["NAME"], int(match["NUMBER"])))
        elif line not in expected:
            raise unknown(f"the definition {line.strip()!r}")
    names = tuple(match[1] for match in found)
    return Arguments(names, frozenset(tensors), integers, tuple(sizes), tuple(strides))


def _calls(source: str, at: int) -> Iterator[Call]:
    """Yields the calls in the host code from `at` to the function's end; raises InputError for another form.

    Results are numbered from 1, and a descriptor has the number of the result before it.
    """
    number = 0
    while number == 0 or not END.match(source, at):
        while assumed := ASSUMED.match(source, at):
            at = assumed.end()
        descriptor = DESCRIPTOR.match(source, at)
        slots, called = _slots(source, descriptor.end() if descriptor else at)
        if called["NUMBER"] != str(number + 1) or (descriptor and descriptor["NUMBER"] != str(number)):
            raise _unread(source, at, f"a descriptor or result that is not numbered as of call {number + 1}")
        yield Call(called["NAME"], descriptor and f"{descriptor['NAME']}_desc", slots)
        at = called.end()
        number += 1


def _slots(source: str, at: int) -> tuple[tuple[Slot, ...], re.Match[str]]:
    """Parses the call in host code from `at` on into (its Slots, its match); raises InputError for other text."""
    slots: list[Slot] = []
    while not (called := CALL.match(source, at)):
        found = [(kind, match) for kind, pattern in SLOTS.items() if (match := pattern.match(source, at))]
        if not found or found[0][1]["SLOT"] != str(len(slots)):
            raise _unread(source, at, f"argument {len(slots)} of a call, or the call")
        [(kind, match)] = found
        slots.append(Slot(kind, match["VALUE"]))
        at = match.end()
    if called["COUNT"] != str(len(slots)):
        raise _unread(source, at, f"a call of {called['COUNT']} arguments, of which {len(slots)} are set")
    return tuple(slots), called
