// Products of float32 matrices with the same bits on every processor: each element of the result is one chain of fused multiply-adds over the
// inner dimension, in ascending order, that starts from the bias or from 0. Blocks and vectors are made of whole chains, so that neither the
// shapes nor the layouts of the matrices change the bits. Elements are next to each other in a vector, as in Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", ACM TOMS 34(3), 2008. Faster than MKL and oneDNN for the matrices of small networks.

#include <immintrin.h>
#include <algorithm>
#include <cstdint>

namespace {

constexpr int ROWS = 6;          // rows of a tile: 12 accumulators, with 3 other values, fill the 16 registers of AVX2
constexpr int COLUMNS = 16;      // columns of a tile and of a panel: two registers
constexpr int64_t DEPTH = 256;   // rows of a panel: 16 KiB, half of the level-1 cache
constexpr int64_t NARROW = 128;  // columns up to which the right matrix is read in place: farther rows would evict each other

struct Matrix {
  const float* data;
  int64_t row_stride, column_stride;
  Matrix at(int64_t row, int64_t column) const {
    return {data + row * row_stride + column * column_stride, row_stride, column_stride};
  }
};

struct Result {
  float* data;
  int64_t row_stride;
  Result at(int64_t row) const { return {data + row * row_stride, row_stride}; }
};

template <int rows>
inline __attribute__((always_inline)) void add_tile(int64_t depth, Matrix left, Matrix right, Result result, const float* bias, bool begin) {
  __m256 sums[rows][2];
  for (int row = 0; row < rows; row++)
    for (int half = 0; half < 2; half++) {
      const float* start = begin ? bias : result.data + row * result.row_stride;
      sums[row][half] = start ? _mm256_loadu_ps(start + 8 * half) : _mm256_setzero_ps();
    }
  for (int64_t k = 0; k < depth; k++) {
    const float* columns = right.data + k * right.row_stride;
    const __m256 first = _mm256_loadu_ps(columns), second = _mm256_loadu_ps(columns + 8);
#pragma GCC unroll 6
    for (int row = 0; row < rows; row++) {
      const __m256 factor = _mm256_set1_ps(left.data[row * left.row_stride + k * left.column_stride]);
      sums[row][0] = _mm256_fmadd_ps(factor, first, sums[row][0]);
      sums[row][1] = _mm256_fmadd_ps(factor, second, sums[row][1]);
    }
  }
  for (int row = 0; row < rows; row++)
    for (int half = 0; half < 2; half++)
      _mm256_storeu_ps(result.data + row * result.row_stride + 8 * half, sums[row][half]);
}

// The last tile of a column of tiles, with fewer than ROWS rows.
void add_last_tile(int64_t rows, int64_t depth, Matrix left, Matrix right, Result result, const float* bias, bool begin) {
  switch (rows) {
    case 1: return add_tile<1>(depth, left, right, result, bias, begin);
    case 2: return add_tile<2>(depth, left, right, result, bias, begin);
    case 3: return add_tile<3>(depth, left, right, result, bias, begin);
    case 4: return add_tile<4>(depth, left, right, result, bias, begin);
    case 5: return add_tile<5>(depth, left, right, result, bias, begin);
  }
}

void transpose_8_by_8(const float* source, int64_t source_stride, float* target) {
  __m256 rows[8], pairs[8];
  for (int i = 0; i < 8; i++) rows[i] = _mm256_loadu_ps(source + i * source_stride);
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    rows[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(1, 0, 1, 0));
    rows[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], _MM_SHUFFLE(3, 2, 3, 2));
    rows[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(1, 0, 1, 0));
    rows[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], _MM_SHUFFLE(3, 2, 3, 2));
  }
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(target + i * COLUMNS, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20));
    _mm256_storeu_ps(target + (i + 4) * COLUMNS, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31));
  }
}

// Copy `depth` rows of up to COLUMNS columns to a panel of COLUMNS columns. Columns that are missing are 0.
void pack(int64_t depth, int64_t width, Matrix right, float* panel) {
  int64_t k = 0;
  if (right.row_stride == 1 && width == COLUMNS)
    for (; k + 8 <= depth; k += 8)
      for (int half = 0; half < COLUMNS; half += 8)
        transpose_8_by_8(right.at(k, half).data, right.column_stride, panel + k * COLUMNS + half);
  for (; k < depth; k++) {
    float* row = panel + k * COLUMNS;
    for (int64_t column = 0; column < width; column++) row[column] = *right.at(k, column).data;
    for (int64_t column = width; column < COLUMNS; column++) row[column] = 0.0f;
  }
}

void add_rows(int64_t rows, int64_t depth, Matrix left, Matrix right, Result result, const float* bias, bool begin) {
  int64_t row = 0;
  for (; row + ROWS <= rows; row += ROWS)
    add_tile<ROWS>(depth, left.at(row, 0), right, result.at(row), bias, begin);
  add_last_tile(rows - row, depth, left.at(row, 0), right, result.at(row), bias, begin);
}

// As add_rows, for fewer than COLUMNS columns, by way of a whole tile.
void add_narrow_rows(int64_t rows, int64_t depth, int64_t width, Matrix left, Matrix panel, Result result,
                     const float* bias, bool begin) {
  float tile[ROWS * COLUMNS] = {}, whole_bias[COLUMNS] = {};
  if (bias) std::copy_n(bias, width, whole_bias);
  for (int64_t row = 0; row < rows; row += ROWS) {
    const int64_t count = std::min<int64_t>(ROWS, rows - row);
    if (!begin)
      for (int64_t i = 0; i < count; i++) std::copy_n(result.at(row + i).data, width, tile + i * COLUMNS);
    add_rows(count, depth, left.at(row, 0), panel, {tile, COLUMNS}, whole_bias, begin);
    for (int64_t i = 0; i < count; i++) std::copy_n(tile + i * COLUMNS, width, result.at(row + i).data);
  }
}

}  // namespace

// Compute `result[m, n] = bias[n] + sum over k of left[m, k] * right[k, n]`. Strides count elements; `bias` may be null. The rows of `result`
// are contiguous.
extern "C" void lockstep_product(int64_t rows, int64_t columns, int64_t inner, const float* left, int64_t left_row_stride,
                                 int64_t left_column_stride, const float* right, int64_t right_row_stride,
                                 int64_t right_column_stride, const float* bias, float* result, int64_t result_row_stride) {
  alignas(64) float panel[DEPTH * COLUMNS];
  const Matrix whole_left{left, left_row_stride, left_column_stride};
  const Matrix whole_right{right, right_row_stride, right_column_stride};
  int64_t start = 0;
  do {  // once also if `inner` is 0, because the bias is part of the first step
    const int64_t depth = std::min(DEPTH, inner - start);
    for (int64_t column = 0; column < columns; column += COLUMNS) {
      const int64_t width = std::min<int64_t>(COLUMNS, columns - column);
      const Matrix block = whole_left.at(0, start);
      Matrix factor = whole_right.at(start, column);
      if (width < COLUMNS || right_column_stride != 1 || right_row_stride > NARROW) {
        pack(depth, width, factor, panel);
        factor = {panel, COLUMNS, 1};
      }
      const Result target{result + column, result_row_stride};
      const float* part = bias ? bias + column : nullptr;
      if (width == COLUMNS)
        add_rows(rows, depth, block, factor, target, part, start == 0);
      else
        add_narrow_rows(rows, depth, width, block, factor, target, part, start == 0);
    }
    start += DEPTH;
  } while (start < inner);
}
