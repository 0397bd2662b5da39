// Runs the kernel that lists the tiles of packed sequences on the host. Problems are integers on stdin, and what the kernel
// leaves goes to stdout: the list with what stands behind it, or the copied queries and the LSE.
#define WARPS 32
#include "block_on_host.h"
#include "list_tiles.h"
#include "gather_rows.h"

using List = void (*)(const int*, const int*, const int*, const int*, int, int, int, int, int, int, int, int, int, int*);
using Gather = void (*)(const void*, int64_t, int64_t, void*, float*, int, int);
const List LISTS[] = {LIST_KERNELS};
const Gather GATHERS[] = {GATHER_KERNELS};
constexpr int UNTOUCHED = 0x55555555, BEHIND = 8;

std::vector<int> read(size_t count) {
  std::vector<int> found(count);
  if (std::fread(found.data(), 4, count, stdin) != count) found.clear();
  return found;
}
template <class T> void write(const std::vector<T>& values) { std::fwrite(values.data(), sizeof(T), values.size(), stdout); }

void list(bool from_last) {
  const auto numbers = read(10);
  const int bounds = numbers[3], used_q = numbers[4], used_k = numbers[5], words = numbers[9];
  const auto begins_q = read(bounds), begins_k = read(bounds), of_q = read(used_q), of_k = read(used_k);
  // TileLang's allocations are aligned.
  static std::vector<int4> room;
  room.assign((words + BEHIND) / 4 + 1, {UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED});
  int* tiles = (int*)room.data();
  kernel = [&] {
    LISTS[numbers[0]](begins_q.data(), begins_k.data(), of_q.data(), of_k.data(), numbers[1], numbers[2], bounds, used_q,
                      used_k, numbers[6], numbers[7], numbers[8], words, tiles);
  };
  run_block(from_last);
  write(std::vector<int>(tiles, tiles + words + BEHIND));
}

void gather() {
  const auto numbers = read(8);
  const int count = numbers[1], heads = numbers[2], columns = numbers[5], blocks = numbers[6];
  const size_t all = size_t(count) * heads * columns;
  std::vector<unsigned short> queries(numbers[7]), rows(all);
  for (size_t n = 0; n < queries.size(); ++n) queries[n] = n * 2654435761u >> 16;
  std::vector<float> lse(size_t(count) * heads, 0.0f);
  for (blockIdx.x = 1; blockIdx.x <= blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x)
      GATHERS[numbers[0]](queries.data(), numbers[3], numbers[4], rows.data(), lse.data(), count, heads);
  write(rows);
  write(lse);
}

int main() {
  for (int number = 0;; ++number) {
    const auto kind = read(1);
    if (kind.empty()) return 0;
    if (kind[0]) gather();
    else list(number % 2);
  }
}
