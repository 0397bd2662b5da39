// Runs the device function that merges parts of the keys on the host and compares it with sums in double. Rows without a
// key have NaN in their parts' outputs, which must not count.
#include <random>

#define WARPS 8
#include "block_on_host.h"

template <bool bf16> unsigned tl_attention_pack(float low, float high) {
  const auto rounded = [](float x) { unsigned u; std::memcpy(&u, &x, 4); return (u + 0x7fff + ((u >> 16) & 1)) >> 16; };
  return rounded(low) | (rounded(high) << 16);
}
#include "merge.h"

// Of packed sequences, `row_heads` rows of a head are those of as many heads for one query, and some rows are no sequence's.
template <int columns, int row_heads = 0>
double error_of(int parts, int batch, int heads, int seq_q, int all_heads, bool has_sinks) {
  std::mt19937 random(parts);
  std::normal_distribution<float> normal;
  const int rows = batch * heads * seq_q;
  std::vector<float> outputs(size_t(parts) * rows * columns), lses(size_t(parts) * rows), merged_lse(rows), sinks(all_heads);
  for (auto& x : outputs) x = normal(random);
  for (size_t i = 0; i < lses.size(); ++i) {
    lses[i] = random() % 4 && i % rows % 5 ? 3 * normal(random) : -INFINITY;
    if (lses[i] == -INFINITY) std::fill_n(outputs.begin() + i * columns, columns, NAN);
  }
  const auto left_out = [&](int row) { return row_heads && row % seq_q / row_heads % 4 == 1; };
  for (int row = 0; row < rows; ++row)
    if (left_out(row)) std::memset(&lses[row], 0xff, 4);
  for (auto& x : sinks) x = 2 * normal(random);
  sinks[0] = -INFINITY;
  std::fill(merged_lse.begin(), merged_lse.end(), 7.0f);
  std::vector<uint16_t> merged(size_t(rows) * columns, 7);
  const int of_query = std::max(row_heads, 1), queries = seq_q / of_query;
  const int64_t of_head = int64_t(queries) * columns;
  kernel = [&] {
    tl_attention_merge<columns, true, row_heads>(outputs.data(), lses.data(), merged.data(), merged_lse.data(), parts, rows, heads, seq_q,
                                      heads * of_query * of_head, of_head, columns, has_sinks ? sinks.data() : nullptr, all_heads);
  };
  const int of_block = 1 + (WARPS - 1) / ((parts + 7) / 8);
  for (blockIdx.x = 0; blockIdx.x * of_block < rows; ++blockIdx.x) run_block();
  double worst = 0;
  const auto note = [&](double error) { worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error; };
  for (int row = 0; row < rows; ++row) {
    const int head = row / seq_q * of_query + row % of_query, place = row_heads ? head * queries + row % seq_q / of_query : row;
    if (left_out(row)) {
      note(merged_lse[place] == 7.0f && merged[size_t(place) * columns] == 7 ? 0 : INFINITY);
      continue;
    }
    const int of_sink = row_heads ? head : row % (heads * seq_q) * all_heads / (heads * seq_q);
    double total = has_sinks ? std::exp(double(sinks[of_sink])) : 0;
    for (int part = 0; part < parts; ++part) total += std::exp(double(lses[part * rows + row]));
    note(total > 0 ? std::abs(merged_lse[place] - std::log(total)) : merged_lse[place] == -INFINITY ? 0 : INFINITY);
    for (int column = 0; column < columns; ++column) {
      double wanted = 0;
      for (int part = 0; part < parts; ++part)
        if (const int of = part * rows + row; lses[of] > -INFINITY)
          wanted += std::exp(double(lses[of])) / total * outputs[size_t(of) * columns + column];
      const unsigned bits = merged[size_t(place) * columns + column] << 16;
      float found;
      std::memcpy(&found, &bits, 4);
      // bf16 has 8 bits.
      note(std::abs(found - wanted) - std::abs(wanted) / 256);
    }
  }
  return worst;
}

int main() {
  for (int parts : {1, 2, 9, 31, 33, 133})
    for (bool sinks : {false, true})
      std::printf("%g %g %g %g %g %g\n", error_of<128, 4>(parts, 1, 3, 20, 12, sinks), error_of<96, 1>(parts, 1, 2, 7, 2, sinks),
                  error_of<128>(parts, 2, 3, 5, 3, sinks), error_of<64>(parts, 1, 2, 8, 8, sinks),
                  error_of<104>(parts, 1, 1, 6, 3, sinks), error_of<256>(parts, 1, 2, 3, 6, sinks));
}
