// Products of matrices with the same bits on every processor: each element of the result is one chain of fused multiply-adds over the
// inner dimension, in ascending order, that starts from the bias or from 0. Blocks and vectors are made of whole chains, so that neither the
// shapes, the layouts of the matrices nor the width of a vector change the bits. Elements are next to each other in a vector, as in Goto and
// van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34(3), 2008.

#pragma once
#include <algorithm>
#include <cstdint>

#include "vectors.h"

namespace product {

// Rows of a tile. AVX2 has 16 registers, which 12 accumulators and 3 other values fill; AVX-512 has 32.
#if defined(__AVX512F__)
constexpr int ROWS = 8;
#else
constexpr int ROWS = 6;
#endif
constexpr int64_t DEPTH = 256;   // rows of a panel: 16 KiB with AVX2, 32 KiB with AVX-512
constexpr int64_t NARROW = 128;  // columns up to which the right matrix is read in place: farther rows would evict each other

template <class T>
constexpr int COLUMNS = 2 * Vector<T>::width;  // columns of a tile and of a panel

template <class T>
struct Matrix {
  const T* data;
  int64_t row_stride, column_stride;
  const T& element(int64_t row, int64_t column) const { return data[row * row_stride + column * column_stride]; }
  Matrix at(int64_t row, int64_t column) const { return {&element(row, column), row_stride, column_stride}; }
  Matrix transposed() const { return {data, column_stride, row_stride}; }
};

// A matrix whose element (m, k) is `data[rows[m] + columns[k]]`, such as the patches of an image that a convolution multiplies.
template <class T>
struct Indexed {
  const T* data;
  const int64_t *rows, *columns;
  const T& element(int64_t row, int64_t column) const { return data[rows[row] + columns[column]]; }
  Indexed at(int64_t row, int64_t column) const { return {data, rows + row, columns + column}; }
};

// Initial values of the sums: rows of numbers, which are the same row if `row_stride` is 0. Without `data` they are 0.
template <class T>
struct Start {
  const T* data;
  int64_t row_stride;
  Start at(int64_t row, int64_t column) const { return {data ? data + row * row_stride + column : nullptr, row_stride}; }
};

// Rows of results, whose columns are contiguous.
template <class T>
struct Result {
  T* data;
  int64_t row_stride;
  T* row(int64_t number) const { return data + number * row_stride; }
  Result at(int64_t row, int64_t column) const { return {data + row * row_stride + column, row_stride}; }
};

template <class T>
struct IndexedResult {
  T* data;
  const int64_t* rows;
  T* row(int64_t number) const { return data + rows[number]; }
  IndexedResult at(int64_t row, int64_t column) const { return {data + column, rows + row}; }
};

// A tile of `rows` times `halves` vectors.
template <class T, int rows, int halves, class Left, class Target>
inline __attribute__((always_inline)) void add_tile(int64_t depth, Left left, Matrix<T> right, Target result, Start<T> from, bool begin) {
  using V = Vector<T>;
  V sums[rows][halves];
  for (int row = 0; row < rows; row++)
    for (int half = 0; half < halves; half++) {
      const T* start = begin ? from.at(row, 0).data : result.row(row);
      sums[row][half] = start ? V::load(start + V::width * half) : V::fill(0);
    }
  for (int64_t k = 0; k < depth; k++) {
    const T* columns = right.data + k * right.row_stride;
    V factors[halves];
    for (int half = 0; half < halves; half++) factors[half] = V::load(columns + V::width * half);
#pragma GCC unroll 16
    for (int row = 0; row < rows; row++) {
      const V factor = V::fill(left.element(row, k));
      for (int half = 0; half < halves; half++) sums[row][half].add_product(factor, factors[half]);
    }
  }
  for (int row = 0; row < rows; row++)
    for (int half = 0; half < halves; half++) sums[row][half].store(result.row(row) + V::width * half);
}

// The last tile of a column of tiles, with at most `most` rows.
template <class T, int most, int halves, class Left, class Target>
void add_last_tile(int64_t rows, int64_t depth, Left left, Matrix<T> right, Target result, Start<T> from, bool begin) {
  if (rows == most) return add_tile<T, most, halves>(depth, left, right, result, from, begin);
  if constexpr (most > 1) add_last_tile<T, most - 1, halves>(rows, depth, left, right, result, from, begin);
}

#if defined(__AVX2__)
inline void transpose_8_by_8(const float* source, int64_t source_stride, float* target, int64_t target_stride) {
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
    _mm256_storeu_ps(target + i * target_stride, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x20));
    _mm256_storeu_ps(target + (i + 4) * target_stride, _mm256_permute2f128_ps(rows[i], rows[i + 4], 0x31));
  }
}
#endif

// Copy whole columns of `right`, which are contiguous, to the first rows of a panel. Return the number of rows that were copied.
template <class T>
int64_t pack_transposed(int64_t, Matrix<T>, T*) {
  return 0;
}

#if defined(__AVX2__)
template <>
inline int64_t pack_transposed<float>(int64_t depth, Matrix<float> right, float* panel) {
  int64_t k = 0;
  for (; k + 8 <= depth; k += 8)
    for (int column = 0; column < COLUMNS<float>; column += 8)
      transpose_8_by_8(right.at(k, column).data, right.column_stride, panel + k * COLUMNS<float> + column, COLUMNS<float>);
  return k;
}
#endif

// Copy `depth` rows of up to COLUMNS columns to a panel of COLUMNS columns. Columns that are missing are 0.
template <class T>
void pack(int64_t depth, int64_t width, Matrix<T> right, T* panel) {
  constexpr int columns = COLUMNS<T>;
  int64_t k = right.row_stride == 1 && width == columns ? pack_transposed<T>(depth, right, panel) : 0;
  for (; k < depth; k++) {
    T* row = panel + k * columns;
    if (right.column_stride == 1)
      for (int64_t column = 0; column < width; column++) row[column] = right.data[k * right.row_stride + column];
    else
      for (int64_t column = 0; column < width; column++) row[column] = *right.at(k, column).data;
    for (int64_t column = width; column < columns; column++) row[column] = 0;
  }
}

template <class T, int halves = 2, class Left, class Target>
void add_rows(int64_t rows, int64_t depth, Left left, Matrix<T> right, Target result, Start<T> from, bool begin) {
  constexpr int most = ROWS * 2 / halves;
  int64_t row = 0;
  for (; row + most <= rows; row += most)
    add_tile<T, most, halves>(depth, left.at(row, 0), right, result.at(row, 0), from.at(row, 0), begin);
  add_last_tile<T, most - 1, halves>(rows - row, depth, left.at(row, 0), right, result.at(row, 0), from.at(row, 0), begin);
}

// As add_rows, for fewer than COLUMNS columns, by way of a whole tile.
template <class T, class Left, class Target>
void add_narrow_rows(int64_t rows, int64_t depth, int64_t width, Left left, Matrix<T> panel, Target result, Start<T> from, bool begin) {
  constexpr int columns = COLUMNS<T>;
  T tile[ROWS * columns] = {};
  for (int64_t row = 0; row < rows; row += ROWS) {
    const int64_t count = std::min<int64_t>(ROWS, rows - row);
    for (int64_t i = 0; i < count; i++) {
      const T* start = begin ? from.at(row + i, 0).data : result.row(row + i);
      start ? std::copy_n(start, width, tile + i * columns) : std::fill_n(tile + i * columns, width, T(0));
    }
    add_rows<T>(count, depth, left.at(row, 0), panel, Result<T>{tile, columns}, {}, false);
    for (int64_t i = 0; i < count; i++) std::copy_n(tile + i * columns, width, result.row(row + i));
  }
}

// Pack a whole matrix: tiles of columns, the last one filled up with zeros, one after the other.
template <class T>
void pack_all(int64_t inner, int64_t columns, Matrix<T> right, T* panels) {
  constexpr int tile = COLUMNS<T>;
  for (int64_t column = 0; column < columns; column += tile)
    pack<T>(inner, std::min<int64_t>(tile, columns - column), right.at(0, column), panels + column * inner);
}

// Compute `result[m, n] = from[m, n] + sum over k of left[m, k] * right[k, n]`; if not `begin`, from the present content of `result` on.
// `right` may be packed as a whole; its strides then have no meaning.
template <class T, class Left, class Target>
void multiply_wide(int64_t rows, int64_t columns, int64_t inner, Left left, Matrix<T> right, Start<T> from, Target result, bool packed,
                   bool begin = true) {
  constexpr int tile = COLUMNS<T>;
  alignas(64) T panel[DEPTH * tile];
  int64_t start = 0;
  do {  // once also if `inner` is 0, because the results begin in the first step
    const int64_t depth = std::min(DEPTH, inner - start);
    for (int64_t column = 0; column < columns; column += tile) {
      const int64_t width = std::min<int64_t>(tile, columns - column);
      const Left block = left.at(0, start);
      Matrix<T> factor = right.at(start, column);
      if (packed) {
        factor = {right.data + column * inner + start * tile, tile, 1};
      } else if (width < tile || right.column_stride != 1 || right.row_stride > NARROW) {
        pack<T>(depth, width, factor, panel);
        factor = {panel, tile, 1};
      }
      const Target target = result.at(0, column);
      const bool first = begin && start == 0;
      if (width == tile)
        add_rows<T>(rows, depth, block, factor, target, from.at(0, column), first);
      else if (width * 2 == tile)
        add_rows<T, 1>(rows, depth, block, factor, target, from.at(0, column), first);
      else
        add_narrow_rows<T>(rows, depth, width, block, factor, target, from.at(0, column), first);
    }
    start += DEPTH;
  } while (start < inner);
}

// As multiply_wide. The rows of `from` and `result` are contiguous.
template <class T>
void multiply(int64_t rows, int64_t columns, int64_t inner, Matrix<T> left, Matrix<T> right, Start<T> from, Result<T> result, bool packed) {
  if (packed || columns * 2 > COLUMNS<T> || rows <= columns)
    return multiply_wide<T>(rows, columns, inner, left, right, from, result, packed);
  // few columns would leave most of a vector unused: compute the transposed product, some rows at a time
  constexpr int tile = COLUMNS<T>;
  alignas(64) T panel[DEPTH * tile], block[tile / 2 * tile];
  for (int64_t row = 0; row < rows; row += tile) {
    const int64_t width = std::min<int64_t>(tile, rows - row);
    for (int64_t column = 0; column < columns; column++)
      for (int64_t i = 0; i < width; i++) block[column * tile + i] = from.data ? *from.at(row + i, column).data : T(0);
    for (int64_t start = 0; start < inner; start += DEPTH) {
      const int64_t depth = std::min(DEPTH, inner - start);
      pack<T>(depth, width, left.transposed().at(start, row), panel);
      add_rows<T>(columns, depth, right.transposed().at(0, start), Matrix<T>{panel, tile, 1}, Result<T>{block, tile}, {}, false);
    }
    for (int64_t i = 0; i < width; i++)
      for (int64_t column = 0; column < columns; column++) result.data[(row + i) * result.row_stride + column] = block[column * tile + i];
  }
}

}  // namespace product
