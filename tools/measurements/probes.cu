// These are microbenchmarks of one SM of a Hopper GPU. probes.py puts before this text: Probe and Beside, the sizes in
// capitals, and Wgmma<N>::ss and ::rs, the product m64nNk16 of bf16 into fp32 with A from shared memory or registers.
// Every mark is the SM's clock, or a difference of it, in a row of MARKS numbers for each warp; NONE is "no answer".
// What is timed stands in asm volatile, so that it stays in order; ptxas may only move arithmetic between two clocks.

#define DEVICE __device__ __forceinline__
#define UNROLLED _Pragma("unroll") for
#define LOOP _Pragma("unroll 1") for

struct Place {
  unsigned* marks;      // the row of this warp
  unsigned char* data;  // the buffer in global memory
  unsigned shared;      // the dynamic shared memory: A, then B, then the mbarriers
  int warpgroup;
  bool first_lane;
};

DEVICE unsigned cycles() {
  unsigned now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
  return now;
}

// Predicated, not branched: a branch between products could have ptxas serialise them.
DEVICE void mark(const Place& place, int number, unsigned value) {
  asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p st.global.u32 [%0], %1;}"
               ::"l"(place.marks + number), "r"(value), "r"((unsigned)place.first_lane) : "memory");
}

// A 0 that ptxas knows nothing of, so that it can neither fold what is computed of it nor compute that anew.
DEVICE unsigned zero(const Place& place, int number) {
  unsigned x;
  asm volatile("ld.volatile.shared.b32 %0, [%1];" : "=r"(x) : "r"(place.shared + 4 * (threadIdx.x + number)));
  return x;
}

DEVICE void idle(unsigned duration) {
  const unsigned start = cycles();
  while (cycles() - start < duration);
}

DEVICE void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// A warp runs on behind a named barrier until its next access of memory.
DEVICE void touch(unsigned address) {
  asm volatile("{.reg .b32 found; ld.volatile.shared.b32 found, [%0];}" ::"r"(address) : "memory");
}
DEVICE void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// What was issued before has ended, and the warps of a warpgroup go on together.
DEVICE void quiet(unsigned duration) {
  named_sync(ALIGN, 128);
  idle(duration);
  named_sync(ALIGN, 128);
}

DEVICE bool try_phase(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
               : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  return done;
}

// Gives up after many cycles, so that no launch hangs, and returns whether the phase was over.
DEVICE bool wait_phase(unsigned barrier, unsigned parity) {
  const unsigned start = cycles();
  bool done = try_phase(barrier, parity);
  while (!done && cycles() - start < PATIENCE) done = try_phase(barrier, parity);
  return done;
}

// ---- products

DEVICE void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int left> DEVICE void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

using Descriptor = unsigned long long;

// K-major with the 128-byte swizzle: eight rows are 1024 bytes, 64 columns of all rows are a panel. Only a sum depends
// on the place, so that products follow each other with little between them.
DEVICE Descriptor panels_at(const Place& place, unsigned offset) {
  return (Descriptor)(1u << 30 | 1024 >> 4) << 32 | ((1u << 16) + (place.shared >> 4) + (offset >> 4));
}

// The k-th product of a sum over 16 columns after 16 columns.
template <int N, bool from_registers> DEVICE void product(const Place& place, float* d, const unsigned* a, int k) {
  const Descriptor b = panels_at(place, B_AT + k / 4 * N * 128 + k % 4 * 32);
  if constexpr (from_registers) Wgmma<N>::rs(d, a + k % 2 * 4, b);
  else Wgmma<N>::ss(d, panels_at(place, k / 4 * 64 * 128 + k % 4 * 32), b);
}

// Seems to need all sums: of products that nobody wants ptxas makes others, with no sums. Without A and B these are 0.
template <int count> DEVICE void keep(const Place& place, const float* d) {
  float all = 0.0f;
  UNROLLED (int i = 0; i < count; ++i) all += d[i];
  if (all != 0.0f) mark(place, MARKS - 1, NONE);
}

// Two fragments of A, for products in turn. Zeros that ptxas knew it would set before each product.
DEVICE void fragments(const Place& place, unsigned* a) {
  UNROLLED (int i = 0; i < 8; ++i) a[i] = zero(place, i);
}

// One warpgroup multiplies all the time, 8 products to a group. Marks: when each chunk of products begins to be issued.
template <int N, bool from_registers> DEVICE void stream(const Place& place) {
  float d[N / 2] = {};
  unsigned a[8];
  fragments(place, a);
  LOOP (int chunk = 0; chunk < CHUNKS; ++chunk) {
    mark(place, chunk, cycles());
    UNROLLED (int group = 0; group < CHUNK / 8; ++group) {
      products_fence();
      UNROLLED (int k = 0; k < 8; ++k) product<N, from_registers>(place, d, a, k);
      products_commit();
      products_wait<1>();
    }
  }
  products_wait<0>();
  keep<N / 2>(place, d);
}

// `count` products on an idle tensor pipe, in groups of 8, or in one if `each`. Marks: the clock before each product if
// `each`, else before the first; after the last commit; after the wait. The last round's instructions are in a cache.
template <int N, bool from_registers, int count, bool each> DEVICE void burst(const Place& place, int rounds) {
  float d[N / 2] = {};
  unsigned a[8], at[count + 2];
  fragments(place, a);
  LOOP (int round = 0; round < rounds; ++round) {
    quiet(2000);
    products_fence();
    UNROLLED (int k = 0; k < count; ++k) {
      if (each || k == 0) at[k] = cycles();
      product<N, from_registers>(place, d, a, k % 8);
      if (k == count - 1 || (k % 8 == 7 && !each)) products_commit();
    }
    at[count] = cycles();
    products_wait<0>();
    at[count + 1] = cycles();
    UNROLLED (int k = 0; k < count + 2; ++k)
      if (each || k == 0 || k >= count) mark(place, each || k == 0 ? k : k - count + 1, at[k]);
  }
  keep<N / 2>(place, d);
}

// Two warpgroups with both products of attention in each round, and 200 FFMA for each pass between rounds. A mark for
// each round: its first product. With turns, the other one gets its turn once the products are issued.
template <bool turns> DEVICE void two_groups(const Place& place, int rounds, int passes) {
  float s[88] = {}, o[64] = {};
  unsigned a[8];
  const float factor = __uint_as_float(place.shared), term = factor + 1.0f;
  const int own = TURN + place.warpgroup, other = TURN + 1 - place.warpgroup;
  fragments(place, a);
  if (turns && place.warpgroup == 1) named_arrive(other, 256);
  LOOP (int round = 0; round < rounds; ++round) {
    if (turns) named_sync(own, 256);
    mark(place, round, cycles());
    products_fence();
    UNROLLED (int k = 0; k < 8; ++k) product<176, false>(place, s, a, k);
    products_commit();
    UNROLLED (int k = 0; k < 11; ++k) product<128, true>(place, o, a, k);
    products_commit();
    if (turns) named_arrive(other, 256);
    products_wait<0>();
    LOOP (int pass = 0; pass < passes; ++pass) {
      UNROLLED (int i = 0; i < 200; ++i)
        asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(s[i % 40]) : "f"(factor), "f"(term));
    }
  }
  keep<88>(place, s);
  keep<64>(place, o);
  // The last turn that is given must be taken: a named barrier must not be left half full.
  if (turns && place.warpgroup == 0) named_sync(own, 256);
}

// Both warpgroups issue `count` products on an idle tensor pipe, warpgroup 1 `delay` cycles later. Marks: the cycles from
// their common start to the issue of each product, and to the end of all.
template <int N, int count> DEVICE void queue(const Place& place, int rounds, int delay) {
  float d[N / 2] = {};
  unsigned a[8], at[count + 1];
  fragments(place, a);
  LOOP (int round = 0; round < rounds; ++round) {
    named_sync(ALIGN, 256);
    idle(2000);
    named_sync(ALIGN, 256);
    touch(place.shared);
    const unsigned start = cycles();
    if (place.warpgroup == 1) idle(delay);
    products_fence();
    UNROLLED (int k = 0; k < count; ++k) {
      at[k] = cycles();
      product<N, false>(place, d, a, k % 8);
    }
    products_commit();
    products_wait<0>();
    at[count] = cycles();
    UNROLLED (int k = 0; k <= count; ++k) mark(place, k, at[k] - start);
  }
  keep<N / 2>(place, d);
}

// ---- vector instructions

struct Operands { unsigned a, b, c, d; };

// Applies the instruction of a probe to x, the `step`-th time. Operands alternate, so that ptxas folds nothing.
template <int probe> DEVICE void apply(unsigned& x, int step, const Operands& o) {
  if constexpr (probe == FFMA) asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+r"(x) : "r"(o.a), "r"(o.b));
  if constexpr (probe == FMUL) asm volatile("mul.rn.f32 %0, %0, %1;" : "+r"(x) : "r"(o.a));
  if constexpr (probe == FADD) asm volatile("add.rn.f32 %0, %0, %1;" : "+r"(x) : "r"(o.a));
  if constexpr (probe == FMNMX) {
    if (step % 2) asm volatile("max.f32 %0, %0, %1;" : "+r"(x) : "r"(o.a));
    else asm volatile("min.f32 %0, %0, %1;" : "+r"(x) : "r"(o.b));
  }
  if constexpr (probe == EX2) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+r"(x));
  if constexpr (probe == CVT) asm volatile("cvt.rn.bf16x2.f32 %0, %0, %1;" : "+r"(x) : "r"(o.a));
  if constexpr (probe == SHFL) asm volatile("shfl.sync.bfly.b32 %0, %0, 1, 31, 0xffffffff;" : "+r"(x));
  if constexpr (probe == LOP3) {
    if (step % 2) asm volatile("lop3.b32 %0, %0, %1, %2, 0xe8;" : "+r"(x) : "r"(o.a), "r"(o.b));
    else asm volatile("lop3.b32 %0, %0, %1, %2, 0x2d;" : "+r"(x) : "r"(o.c), "r"(o.d));
  }
  if constexpr (probe == IMAD) asm volatile("mad.lo.s32 %0, %0, %1, %2;" : "+r"(x) : "r"(o.a), "r"(o.b));
}

// Arrays of 16 registers that a probe's instructions take: one for each kind of instruction.
DEVICE constexpr int kinds(int probe) {
  return probe == MOV ? MOVES / 16 : probe == SOFTMAX ? 5 : probe == FFMA_THREE ? 3 : probe >= FFMA_EX2 ? 2 : 1;
}

// The instructions of a loop's body: of `chains` that do not depend on each other, one for each in turn.
template <int probe, int chains> DEVICE void body(unsigned (*x)[16], const Operands& o) {
  if constexpr (probe == MOV) {
    // Values that go round all registers, one place in each iteration, cannot but be moved: by MOVES instructions.
    const unsigned first = x[0][0];
    UNROLLED (int i = 0; i < MOVES - 2; ++i) x[i / 16][i % 16] = x[(i + 1) / 16][(i + 1) % 16];
    x[MOVES / 16 - 1][15] = first;
    return;
  }
  UNROLLED (int i = 0; i < BODY; ++i) {
    const int chain = i % chains, step = i / chains;
    if constexpr (probe == FFMA_EX2) {
      if (i % 5 < 4) apply<FFMA>(x[0][chain], step, o);
      else apply<EX2>(x[1][i / 5 % 16], step, o);
    } else if constexpr (probe == EX2_FFMA || probe == EX2_FADD) {
      if (i % 2 == 0) apply<EX2>(x[1][i / 2 % 16], step, o);
      else apply<probe == EX2_FFMA ? FFMA : FADD>(x[0][i / 2 % 16], i / 32, o);
    } else if constexpr (probe == FMNMX_FFMA) {
      if (i % 2) apply<FMNMX>(x[0][i / 2 % 16], i / 32, o);
      else apply<FFMA>(x[1][i / 2 % 16], i / 32, o);
    } else if constexpr (probe == FFMA_THREE) {
      // Three registers that no instruction near it reads: nothing is kept from one instruction for the next.
      apply<FFMA>(x[0][chain], step, {x[1][(3 * i + step) % 16], x[2][(5 * i + step) % 16], 0, 0});
    } else if constexpr (probe == SOFTMAX) {
      // Two elements: FMNMX, FFMA, EX2 and FADD of each, and the conversion of both.
      const char kind = "MFFEFAFMFFEFAFC"[i % 15];
      if (kind == 'F') apply<FFMA>(x[0][chain], step, o);
      if (kind == 'E') apply<EX2>(x[1][chain], step, o);
      if (kind == 'A') apply<FADD>(x[2][chain], step, o);
      if (kind == 'M') apply<FMNMX>(x[3][chain], i / 15, o);
      if (kind == 'C') apply<CVT>(x[4][chain], step, o);
    } else {
      apply<probe>(x[0][chain], step, o);
    }
  }
}

// Marks: before the first body, after the last. All `groups` warpgroups begin together.
template <int probe, int chains> DEVICE void vector(const Place& place, int groups, int iterations) {
  unsigned x[kinds(probe)][16];
  const Operands o{zero(place, 0), zero(place, 1), zero(place, 2), zero(place, 3)};
  UNROLLED (int i = 0; i < kinds(probe) * 16; ++i) x[i / 16][i % 16] = zero(place, i);
  named_sync(ALIGN, 128 * groups);
  const unsigned start = cycles();
  LOOP (int i = 0; i < iterations; ++i) body<probe, chains>(x, o);
  const unsigned end = cycles();
  mark(place, 0, start), mark(place, 1, end);
  // What is computed must seem to be wanted; no clock is NONE.
  unsigned all = 0;
  UNROLLED (int i = 0; i < kinds(probe) * 16; ++i) all ^= x[i / 16][i % 16];
  if (start == NONE) mark(place, 2, all);
}

// ---- barriers, copies and stores

// Warpgroup 1 already waits when warpgroup 0 arrives. A mark in each: before the arrival, after the wait.
template <bool named> DEVICE void handover(const Place& place, int rounds) {
  const unsigned barrier = place.shared + BARRIERS_AT + zero(place, 0);
  LOOP (int round = 0; round < rounds; ++round) {
    named_sync(ALIGN, 256);
    if (place.warpgroup == 0) {
      idle(2000);
      const unsigned start = cycles();
      if (named) named_arrive(TURN, 256);
      else if (place.first_lane)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
      mark(place, 0, start);
    } else {
      bool done = true;
      if (named) named_sync(TURN, 256), touch(barrier);
      else done = wait_phase(barrier, round % 2);
      const unsigned end = cycles();
      mark(place, 0, done ? end : NONE);
    }
  }
}

// Marks: before and after one look at an mbarrier whose phase is over; then two clocks with nothing between.
DEVICE void ready(const Place& place, int rounds) {
  const unsigned barrier = place.shared + BARRIERS_AT + 8 + zero(place, 0);
  LOOP (int round = 0; round < rounds; ++round) {
    named_sync(ALIGN, 128);
    const unsigned start = cycles();
    if (!try_phase(barrier, 1)) idle(1000);
    const unsigned end = cycles(), after = cycles();
    mark(place, 0, start), mark(place, 1, end);
    mark(place, 2, after);
  }
}

DEVICE void expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

DEVICE void copy(unsigned to, const unsigned char* from, unsigned bytes, unsigned barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// One thread copies alone. A mark for each copy: the cycles from its issue to the end of the wait.
DEVICE void copy_latency(const Place& place, int rounds, int bytes, int step) {
  const unsigned barrier = place.shared + BARRIERS_AT + 8 + zero(place, 0), to = place.shared + B_AT + zero(place, 1);
  const unsigned char* from = place.data + zero(place, 2);
  bytes += zero(place, 3);
  LOOP (int round = 0; round < rounds; ++round, from += step) {
    expect(barrier, bytes);
    const unsigned start = cycles();
    copy(to, from, bytes, barrier);
    const bool done = wait_phase(barrier, round % 2);
    const unsigned end = cycles();
    mark(place, round, done ? end - start : NONE);
    idle(1000);
  }
}

// One thread of each block keeps SLOTS copies in flight, in a region that begins anew at its end. Marks: start, end.
DEVICE void copy_stream(const Place& place, int copies, int region, int first) {
  const unsigned barriers = place.shared + BARRIERS_AT + 8, start = cycles();
  bool done = true;
  int offset = first % region;
  LOOP (int i = 0; i < copies + SLOTS; ++i) {
    const int slot = i % SLOTS;
    if (i >= SLOTS) done &= wait_phase(barriers + 8 * slot, (i / SLOTS + 1) % 2);
    if (i < copies) {
      expect(barriers + 8 * slot, SLOT);
      copy(place.shared + B_AT + slot * SLOT, place.data + offset, SLOT, barriers + 8 * slot);
      offset = offset + SLOT == region ? 0 : offset + SLOT;
    }
  }
  const unsigned end = cycles();
  mark(place, 0, start), mark(place, 1, done ? end : NONE);
}

// A warpgroup stores 64 rows of 128 bf16, of which four lanes hold 64 neighbouring bytes each time, as kernels do.
DEVICE void store(const Place& place, int rounds) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  unsigned x[32];
  UNROLLED (int i = 0; i < 32; ++i) x[i] = zero(place, i);
  unsigned char* const to = place.data + row * 256 + lane % 4 * 16;
  LOOP (int round = 0; round < rounds; ++round) {
    quiet(4000);
    const unsigned start = cycles();
    UNROLLED (int n = 0; n < 8; ++n)
      asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
                   ::"l"(to + n / 4 * 8 * 256 + n % 4 * 64), "r"(x[4 * n]), "r"(x[4 * n + 1]), "r"(x[4 * n + 2]),
                     "r"(x[4 * n + 3]) : "memory");
    const unsigned end = cycles();
    mark(place, 0, start), mark(place, 1, end);
  }
}

template <int count, bool each, int... widths>
DEVICE void bursts(const Place& place, int width, bool from_registers, int rounds) {
  ((width == widths ? from_registers ? burst<widths, true, count, each>(place, rounds)
                                     : burst<widths, false, count, each>(place, rounds) : void()), ...);
}

template <int chains, int... probes> DEVICE void bodies(const Place& place, int probe, int groups, int iterations) {
  ((probe == probes ? vector<probes, chains>(place, groups, iterations) : void()), ...);
}

// Warpgroups from 0 to `groups` run `probe`, and warpgroup 1 products of this kind `beside` it, if that is not 0.
// `size` is a region's or a copy's bytes, passes, or a delay; `step` is the bytes from a copy, or from a block, to the next.
DEVICE void tl_attention_probe(const int* marks, const unsigned char* data, unsigned char* shared, int block,
    int probe, int groups, int beside, int from_registers, int iterations, int size, int step) {
  const int thread = threadIdx.x;
  // Broadcast, so that ptxas knows it to be the same in all lanes.
  const int warpgroup = __shfl_sync(0xffffffff, thread / 128, 0);
  const unsigned address = __cvta_generic_to_shared(shared);
  for (int i = thread; i < BARRIERS_AT / 16; i += 256) ((uint4*)shared)[i] = make_uint4(0, 0, 0, 0);
  if (thread == 0) {
    for (int i = 0; i <= SLOTS; ++i)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address + BARRIERS_AT + 8 * i), "r"(i ? 1 : 4));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  unsigned* const row = (unsigned*)marks + (block * 8 + thread / 32) * MARKS;
  const Place place{row, (unsigned char*)data, address, warpgroup, thread % 32 == 0};
  if (warpgroup == 1 && beside == SS) stream<176, false>(place);
  if (warpgroup == 1 && beside == RS) stream<128, true>(place);
  if (warpgroup >= groups) return;
  if (beside && probe < BURST) idle(6000);
  bodies<16, FFMA, FMUL, FADD, FMNMX, EX2, CVT, SHFL, LOP3, IMAD, MOV, FFMA_EX2, EX2_FFMA, EX2_FADD, FMNMX_FFMA, FFMA_THREE, SOFTMAX>(
      place, probe, groups, iterations);
  bodies<1, FFMA, FADD, FMNMX, EX2, CVT, SHFL>(place, probe - CHAIN, groups, iterations);
  if (probe == BURST) bursts<1, false, 128, 176>(place, size, from_registers, iterations);
  if (probe == BURST8) bursts<8, false, 64, 96, 128, 160, 176, 192, 256>(place, size, from_registers, iterations);
  if (probe == BURST24) bursts<24, false, 64, 96, 128, 160, 176, 192, 256>(place, size, from_registers, iterations);
  if (probe == BURST_EACH) bursts<12, true, 128, 176, 256>(place, size, from_registers, iterations);
  if (probe == QUEUE) queue<176, QUEUED>(place, iterations, size);
  if (probe == TURNS) two_groups<true>(place, iterations, size);
  if (probe == NO_TURNS) two_groups<false>(place, iterations, size);
  if (probe == NAMED) handover<true>(place, iterations);
  if (probe == MBARRIER) handover<false>(place, iterations);
  if (probe == READY) ready(place, iterations);
  if (probe == STORE) store(place, iterations);
  if (probe == COPY && thread == 0) copy_latency(place, iterations, size, step);
  if (probe == COPIES && thread == 0) copy_stream(place, iterations, size, block * step);
}
