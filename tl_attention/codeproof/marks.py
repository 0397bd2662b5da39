"""This module puts marks into generated code, lines at which a thread notes the time, and takes them out again.

A mark says what follows it: a wait, the issue of a product, a load, a group of vector statements. So the time from a
mark to the next one of the same thread has a name. Marks are put where the reader of generated code knows what a line
is. A kernel with marks is proved as its code without them, and every line of the marks must be exactly as it is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tl_attention.codeproof.mark_places import BORDER, ITERATION, Mark, places
from tl_attention.problem.variant import TRACE_WORDS
from tl_attention.problem.warpgroup import WARP, WARPGROUP

# The buffer of a traced kernel is words of 8 bytes. Word 0 says how many records each role leaves out at first, word 1
# how many blocks are traced, and the next ones say which. From word HEAD on each traced role has OWN words: the GPU's
# timer, the SM's clock at the same time, and the SM's number + 1. Behind byte RECORDS there are records: one has a slot
# of 4 bytes for each of MOST_BLOCKS blocks, each role and each mark, with the lower half of the SM's clock, or 0 where
# the role did not come by. A role goes on to the next record in each iteration of a loop that has marks, so that none
# has to be counted: a mark is two instructions, one that reads the clock and, later, a store. Nothing is stored LIMIT
# bytes behind RECORDS or later, and a thread that notes nothing begins there.
HEAD, OWN, MOST_BLOCKS, MOST_SLOTS = 32, 3, 16, 1024
RECORDS = 8192
LIMIT = 8 * TRACE_WORDS - RECORDS - 4 * MOST_SLOTS
DEFINITIONS = """
template <int slots> struct tl_attention_marks {
  int at;
  unsigned times[slots];
};
template <int slot, int slots> __device__ __forceinline__ void tl_attention_mark(tl_attention_marks<slots>& marks) {
  asm volatile("mov.u32 %0, %%clock;" : "=r"(marks.times[slot]));
}
template <int first, int behind, int slots>
__device__ __forceinline__ void tl_attention_note(const tl_attention_marks<slots>& marks, const int64_t* trace) {
  if constexpr (first < behind) {
    asm volatile(
        "{ .reg .pred stores; .reg .u64 place; setp.lt.u32 stores, %0, %2; "
        "cvt.u64.u32 place, %0; add.u64 place, place, %1; @stores st.global.u32 [place + %3], %4; }"
        :: "r"(marks.at), "l"(trace), "n"(LIMIT), "n"(RECORDS + 4 * first), "r"(marks.times[first]));
    tl_attention_note<first + 1, behind>(marks, trace);
  }
}
template <int slots> __device__ __forceinline__ void tl_attention_next(tl_attention_marks<slots>& marks) {
  marks.at = min(marks.at + ROLES * MOST_BLOCKS * 4 * slots, LIMIT);
}
template <int slots> __device__ __forceinline__ tl_attention_marks<slots> tl_attention_begin(const int64_t* trace) {
  const int thread = threadIdx.x + blockDim.x * threadIdx.y;
  const int64_t block = blockIdx.x + gridDim.x * (blockIdx.y + (int64_t)gridDim.y * blockIdx.z);
  tl_attention_marks<slots> marks;
  marks.at = LIMIT;
  if (thread % THREADS) return marks;
  for (int n = 0; n < MOST_BLOCKS && n < trace[1]; ++n) {
    if (trace[2 + n] != block) continue;
    const int role = n * ROLES + thread / THREADS;
    unsigned long long* own = (unsigned long long*)trace + HEAD + role * OWN;
    unsigned long long wall, now;
    unsigned sm;
    asm volatile("mov.u64 %0, %%globaltimer; mov.u64 %1, %%clock64; mov.u32 %2, %%smid;" : "=l"(wall), "=l"(now), "=r"(sm));
    own[0] = wall;
    own[1] = now;
    own[2] = sm + 1;
    marks.at = (int)max(role * 4 * slots - trace[0] * ROLES * MOST_BLOCKS * 4 * slots, (int64_t)INT_MIN);
  }
  return marks;
}
"""
# The line by which a lowering asks for marks, and those that stand in the marked kernel.
ASKED = "tl_attention_trace(Trace);"
BEGIN = "auto marks = tl_attention_begin<{}>(Trace);"
MARK = "tl_attention_mark<{}>(marks);"
NOTE = "tl_attention_note<{}, {}>(marks, Trace);"
NEXT = "tl_attention_next(marks);"
BEGINS, LINES = (re.compile(rf"\s*(?:{text})$") for text in (
    re.escape(BEGIN).replace(r"\{\}", r"\d+"),
    "|".join(re.escape(line).replace(r"\{\}", r"\d+") for line in (MARK, NOTE, NEXT)),
))  # fmt: skip
# Times stay in registers until one of these: a store frees its register late, and the next mark would wait for that.
NOTED_AT = {"end", BORDER}
LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\((\d+),")


def marked(source: str, kinds: Iterable[str]) -> tuple[str, tuple[Mark, ...]]:
    """Puts marks of these kinds into generated code that asks for marks, and returns the code and its marks in order.

    Raises SyntaxError for code that the reader does not know.
    """
    lines = source.split("\n")
    asked = next((number for number, line in enumerate(lines) if line.strip() == ASKED), None)
    if asked is None:
        raise SyntaxError("the code asks for no marks")
    plain = [*lines[:asked], *lines[asked + 1 :]]
    kinds = frozenset(kinds)
    every = [mark for mark in places("\n".join(plain), kinds) if mark.line >= asked]
    if "tile" in kinds and not any(mark.kind == "tile" for mark in every):
        every.insert(0, Mark(asked, "tile"))  # A block without a loop over tiles works on one.
    marks = tuple(mark for mark in every if mark.kind not in (ITERATION, BORDER))
    if not 0 < len(marks) <= MOST_SLOTS:
        raise SyntaxError(f"the code has {len(marks)} marks, expected 1 to {MOST_SLOTS}")
    return _definitions(source) + "\n".join(_lines(plain, asked, every, len(marks))), marks


def _lines(plain: Sequence[str], asked: int, found: Iterable[Mark], slots: int) -> Iterable[str]:
    """Yields the lines of a kernel, and before them those of its marks."""
    at: dict[int, list[str]] = {asked: [BEGIN.format(slots)]}
    slot, noted = 0, 0
    for mark in found:
        texts = at.setdefault(mark.line, [])
        if mark.kind == ITERATION:
            texts.append(NEXT)
        elif mark.kind != BORDER:
            texts.append(MARK.format(slot))
            slot += 1
        if mark.kind in NOTED_AT and noted < slot:
            texts.append(NOTE.format(noted, slot))
            noted = slot
    for number, line in enumerate(plain):
        indent = " " * (len(line) - len(line.lstrip()))
        yield from (indent + text for text in at.get(number, ()))
        yield line


def _definitions(source: str) -> str:
    """Returns the functions of marks for a kernel, with its numbers in them."""
    numbers = {
        "THREADS": threads_of_role(source),
        "ROLES": roles_in(source),
        "INT_MIN": "-0x80000000LL",
        "LIMIT": LIMIT,
    }
    numbers |= {"MOST_BLOCKS": MOST_BLOCKS, "RECORDS": RECORDS, "HEAD": HEAD, "OWN": OWN}
    return re.sub(rf"\b({'|'.join(numbers)})\b", lambda match: str(numbers[match[1]]), DEFINITIONS)


def unmarked(source: str, kinds: Iterable[str]) -> tuple[str, tuple[Mark, ...]]:
    """Takes the marks of these kinds out of generated code, and returns the code without them, and the marks in order.

    Raises SyntaxError unless the code is to the letter what `marked` makes, and does nothing else with marks.
    """
    lines = [line for line in source.removeprefix(_definitions(source)).split("\n") if not LINES.match(line)]
    again, marks = marked("\n".join(f"  {ASKED}" if BEGINS.match(line) else line for line in lines), kinds)
    plain = "\n".join(line for line in lines if not BEGINS.match(line))
    body = plain[plain.index("__launch_bounds__") :].partition("\n")[2]
    if again != source or re.search(r"\b(?:tl_attention_)?(?:marks|mark|next|begin|Trace)\b", body):
        raise SyntaxError("its marks are not to the letter as they must be, or it does something else with them")
    return plain, marks


def threads_of_role(source: str) -> int:
    """Returns how many threads note the time together, by one of them: a warp by mma.sync, a warpgroup by wgmma."""
    return WARP if "tl::mma_sync<" in source else WARPGROUP


def threads_in(source: str) -> int:
    """Returns how many threads a thread block of a generated kernel has."""
    match = LAUNCH_BOUNDS.search(source)
    if not match:
        raise SyntaxError("the kernel does not say how many threads it has")
    return int(match[1])


def roles_in(source: str) -> int:
    """Returns how many roles a thread block of a generated kernel has."""
    return threads_in(source) // threads_of_role(source)
