// Runs the kernel that lists the tiles of packed sequences on the host. Problems are integers on stdin, and what the kernel
// leaves goes to stdout: the list with what stands behind it.
#define WARPS 16
#include "block_on_host.h"
#include "list_tiles.h"

using List = void (*)(const int*, const int*, const int*, const int*, int, int, int, int, int, int, int, int, int, int, int*);
const List LISTS[] = {LIST_KERNELS};
constexpr int UNTOUCHED = 0x55555555, BEHIND = 8;

std::vector<int> read(size_t count) {
  std::vector<int> found(count);
  if (std::fread(found.data(), 4, count, stdin) != count) found.clear();
  return found;
}

void list(const std::vector<int>& numbers, bool from_last) {
  const int bounds = numbers[3], used_q = numbers[4], used_k = numbers[5], words = numbers[11];
  const auto begins_q = read(bounds), begins_k = read(bounds), of_q = read(used_q), of_k = read(used_k);
  // TileLang's allocations are aligned.
  static std::vector<int4> room;
  room.assign((words + BEHIND) / 4 + 1, {UNTOUCHED, UNTOUCHED, UNTOUCHED, UNTOUCHED});
  int* tiles = (int*)room.data();
  kernel = [&] {
    LISTS[numbers[0]](begins_q.data(), begins_k.data(), of_q.data(), of_k.data(), numbers[1], numbers[2], bounds, used_q,
                      used_k, numbers[6], numbers[7], numbers[8], numbers[9], numbers[10], tiles);
  };
  run_block(from_last);
  std::fwrite(tiles, 4, words + BEHIND, stdout);
}

int main() {
  for (int number = 0;; ++number) {
    const auto numbers = read(12);
    if (numbers.empty()) return 0;
    list(numbers, number % 2);
  }
}
