// Runs the device functions that merge parts of the keys on the host and compares them with sums in double. Rows without a
// key have NaN in their parts' outputs, which must not count.
#include <random>

#define WARPS 8
#include "block_on_host.h"

template <bool bf16> unsigned tl_attention_pack(float low, float high) {
  const auto rounded = [](float x) { unsigned u; std::memcpy(&u, &x, 4); return (u + 0x7fff + ((u >> 16) & 1)) >> 16; };
  return rounded(low) | (rounded(high) << 16);
}
#include "merge.h"
#include "merge_listed.h"

struct Results {
  std::vector<float> outputs, lses;
  std::mt19937 random;
  Results(size_t rows, int columns, int seed) : outputs(rows * columns), lses(rows), random(seed) {
    std::normal_distribution<float> normal;
    for (auto& x : outputs) x = normal(random);
    for (size_t row = 0; row < rows; ++row) {
      lses[row] = random() % 4 ? 3 * normal(random) : -INFINITY;
      if (lses[row] == -INFINITY) std::fill_n(outputs.begin() + row * columns, columns, NAN);
    }
  }
  std::vector<float> sinks(int heads) {
    std::normal_distribution<float> normal;
    std::vector<float> found(heads);
    for (auto& x : found) x = 2 * normal(random);
    found[0] = -INFINITY;
    return found;
  }
  // The error of a merged row, whose parts' results are in these rows.
  double error(const std::vector<size_t>& rows, const float* sink, const uint16_t* merged, float lse, int columns) const {
    double total = sink ? std::exp(double(*sink)) : 0, worst = 0;
    const auto note = [&](double error) { worst = error <= worst ? worst : std::isnan(error) ? INFINITY : error; };
    for (size_t row : rows) total += std::exp(double(lses[row]));
    note(total > 0 ? std::abs(lse - std::log(total)) : lse == -INFINITY ? 0 : INFINITY);
    for (int column = 0; column < columns; ++column) {
      double wanted = 0;
      for (size_t row : rows)
        if (lses[row] > -INFINITY) wanted += std::exp(double(lses[row])) / total * outputs[row * columns + column];
      const unsigned bits = merged[column] << 16;
      float found;
      std::memcpy(&found, &bits, 4);
      // bf16 has 8 bits.
      note(std::abs(found - wanted) - std::abs(wanted) / 256);
    }
    return worst;
  }
};

template <int columns> double of_batch(int parts, int batch, int heads, int seq_q, bool has_sinks) {
  const int rows = batch * heads * seq_q;
  Results results(size_t(parts) * rows, columns, parts);
  const auto sinks = results.sinks(heads);
  std::vector<float> merged_lse(rows);
  std::vector<uint16_t> merged(size_t(rows) * columns);
  const int64_t of_head = int64_t(seq_q) * columns;
  kernel = [&] {
    tl_attention_merge<columns, true>(results.outputs.data(), results.lses.data(), merged.data(), merged_lse.data(), parts,
                                      rows, heads, seq_q, heads * of_head, of_head, columns, has_sinks ? sinks.data() : nullptr);
  };
  const int of_block = 1 + (WARPS - 1) / ((parts + 7) / 8);
  for (blockIdx.x = 0; blockIdx.x * of_block < rows; ++blockIdx.x) run_block();
  double worst = 0;
  for (int row = 0; row < rows; ++row) {
    std::vector<size_t> own;
    for (int part = 0; part < parts; ++part) own.push_back(size_t(part) * rows + row);
    const float* sink = has_sinks ? &sinks[row / seq_q % heads] : nullptr;
    worst = std::max(worst, results.error(own, sink, &merged[size_t(row) * columns], merged_lse[row], columns));
  }
  return worst;
}

// Split sequences of so many queries and parts each. Rows of other sequences, every other one, are left alone.
template <int columns, int group, int tile_heads, int box>
double of_listed(const std::vector<std::pair<int, int>>& sequences, int kv_heads, bool has_sinks) {
  constexpr int block_M = 128, subgroups = (group + tile_heads - 1) / tile_heads;
  const int heads = kv_heads * group, of_tiles = kv_heads * subgroups, begin = 16;
  std::vector<int> tiles(begin);
  int places = 0, most = 1, row = 3, count = 0;
  for (const auto& [queries, parts] : sequences) {
    for (int query = 0; query < queries; ++query) tiles.insert(tiles.end(), {row + query, places, parts, query});
    count += queries, places += parts, row += 2 * queries, most = std::max(most, parts);
  }
  tiles[1] = count, tiles[2] = most, tiles[3] = begin;
  const int total_q = row + 2;
  Results results(size_t(places) * of_tiles * block_M, columns, most);
  const auto sinks = results.sinks(heads);
  std::vector<float> merged_lse(size_t(heads) * total_q, 7.0f);
  std::vector<uint16_t> merged(size_t(heads) * total_q * columns, 7);
  const int64_t row_stride = heads * columns;
  // TileLang's allocations are aligned.
  static std::vector<int4> aligned;
  aligned.assign(tiles.size() / 4 + 1, {});
  std::memcpy((void*)aligned.data(), tiles.data(), 4 * tiles.size());
  kernel = [&] {
    tl_attention_merge_listed<columns, true, block_M, group, tile_heads, box>(
        results.outputs.data(), results.lses.data(), merged.data(), merged_lse.data(), (const int*)aligned.data(), heads,
        total_q, columns, row_stride, has_sinks ? sinks.data() : nullptr);
  };
  gridDim.x = 5;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) run_block();
  double worst = 0;
  std::vector<bool> there(total_q);
  for (size_t at = begin; at < tiles.size(); at += 4) {
    const int of_row = tiles[at], base = tiles[at + 1], parts = tiles[at + 2], query = tiles[at + 3];
    there[of_row] = true;
    for (int head = 0; head < heads; ++head) {
      std::vector<size_t> own;
      const int subgroup = head % group / tile_heads, first = subgroup + 1 < subgroups ? subgroup * tile_heads : group - tile_heads;
      const int of_tile = head / group * subgroups + subgroup, member = head % group - first;
      for (int part = 0; part < parts; ++part)
        own.push_back((size_t(base + part) * of_tiles + of_tile) * block_M + query / box * 64 + member * box + query % box);
      const uint16_t* found = &merged[of_row * row_stride + head * columns];
      worst = std::max(worst, results.error(own, has_sinks ? &sinks[head] : nullptr, found, merged_lse[head * total_q + of_row], columns));
    }
  }
  for (int of_row = 0; of_row < total_q; ++of_row)
    for (int head = 0; !there[of_row] && head < heads; ++head)
      if (merged_lse[head * total_q + of_row] != 7.0f || merged[of_row * row_stride + head * columns] != 7) return INFINITY;
  return worst;
}

int main() {
  for (bool sinks : {false, true}) {
    for (int parts : {1, 2, 9, 31, 33, 133})
      std::printf("%g %g %g %g\n", of_batch<128>(parts, 2, 3, 5, sinks), of_batch<64>(parts, 1, 2, 8, sinks),
                  of_batch<104>(parts, 1, 1, 6, sinks), of_batch<256>(parts, 1, 2, 3, sinks));
    std::printf("%g %g %g %g\n", of_listed<128, 4, 4, 16>({{1, 2}, {17, 8}, {32, 3}}, 2, sinks),
                of_listed<96, 2, 1, 64>({{1, 33}, {70, 2}}, 3, sinks), of_listed<72, 13, 7, 8>({{16, 9}, {3, 2}}, 2, sinks),
                of_listed<256, 3, 3, 21>({{42, 2}, {1, 133}, {2, 17}}, 1, sinks));
  }
}
