// Runs the device function that finds LSE and D of a warpgroup's rows on the host, and compares them with sums in double.
// Prints the largest error of D, and how many numbers are not what they must be, for each count of rows.
#include <random>

#define WARPS 4
#include "block_on_host.h"

float2 make_float2(float x, float y) { return {x, y}; }
float __uint_as_float(unsigned bits) { return __int_as_float(int(bits)); }
#include "row_facts.h"

constexpr int ROWS = 64;
// How far apart rows of O and of dO lie, if the device function is told.
#ifdef STRIDES
constexpr int APART[] = {STRIDES};
#define BEHIND , APART[0], APART[1]
#else
constexpr int APART[] = {0, 0};
#define BEHIND
#endif

template <int columns> void of_rows(int rows) {
  std::mt19937 random(rows);
  std::normal_distribution<float> normal;
  // Behind the last row, and between rows, lies what must not be read.
  constexpr int apart_o = APART[0] ? APART[0] : columns, apart_g = APART[1] ? APART[1] : columns;
  std::vector<uint16_t> o(ROWS * apart_o, 0x7fc0), g(ROWS * apart_g, 0x7fc0);
  std::vector<float> lse(ROWS, NAN), d_lse(ROWS, NAN), row_lse(ROWS, -7), row_d(ROWS, -7), of_lanes(THREADS * 4);
  const auto bf16 = [&] { const float x = normal(random); unsigned u; std::memcpy(&u, &x, 4); return uint16_t(u >> 16); };
  const auto number = [](uint16_t bits) { return double(__int_as_float(int(bits) << 16)); };
  for (int row = 0; row < std::min(rows, ROWS); ++row) {
    lse[row] = row % 5 == 3 ? -INFINITY : 40 * normal(random);
    // A row without an LSE has no gradient of it.
    d_lse[row] = row % 5 == 3 ? NAN : 9 * normal(random);
    for (int column = 0; column < columns; ++column) o[row * apart_o + column] = bf16(), g[row * apart_g + column] = bf16();
  }
  kernel = [&] {
    float* own = &of_lanes[4 * threadIdx.x];
    tl_attention_row_facts<columns, true>(own, own + 2, o.data(), g.data(), lse.data(), row_lse.data(), row_d.data(),
#ifdef WITH_D_LSE
                                          d_lse.data(),
#endif
                                          rows BEHIND);
  };
  run_block();
  double worst = 0;
  int wrong = 0;
  for (int row = 0; row < ROWS; ++row) {
    double d = 0;
    for (int column = 0; column < columns && row < rows; ++column)
      d += number(o[row * apart_o + column]) * number(g[row * apart_g + column]);
#ifdef WITH_D_LSE
    if (row < rows && lse[row] != -INFINITY) d -= d_lse[row];
#endif
    const float wanted = row >= rows || lse[row] == -INFINITY ? INFINITY : lse[row] * 1.4426950408889634f;
    worst = std::max(worst, std::isfinite(row_d[row]) ? std::abs(row_d[row] - d) : INFINITY);
    wrong += row_lse[row] != wanted;
    // The four lanes that have the row, as wgmma leaves it, have the same numbers.
    for (int member = 0; member < 4; ++member) {
      const int thread = row / 16 * 32 + row % 8 * 4 + member, half = row / 8 % 2;
      wrong += of_lanes[4 * thread + half] != wanted || of_lanes[4 * thread + 2 + half] != row_d[row];
    }
  }
  std::printf("%g %d\n", worst, wrong);
}

int main() {
  for (int rows : {64, 200, 63, 17, 8, 1, 0, -64}) of_rows<64>(rows), of_rows<72>(rows), of_rows<128>(rows);
}
