// Runs programs: lists of instructions on arrays of numbers, which `program.py` writes. Their results have the same bits on every processor:
// functions and products have an order of their own (functions.h, product.h), and so have sums.
//
// A program is an array of 64-bit words. An instruction begins with its kind and its number of words. Memory is addressed by the index of
// an array and an offset; offsets, sizes and strides count numbers, not bytes. Boolean and integer values are stored as floating-point numbers,
// but arguments may be arrays of bytes, which element-wise operations convert.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "functions.h"
#include "product.h"
#include "strided.h"

namespace {

enum Kind : int64_t { FUSION, COPY, REDUCE, PRODUCT, GATHER, SCATTER_ADD, PACK, PACKED_PRODUCT, ARGMAX, INDEXED_PRODUCT, ADD_COPY };
enum Source : int64_t { SCRATCH, DIRECT, UNIFORM, STRIDED, BYTES };
enum Operation : int64_t {
  ASSIGN, NEGATE, ABSOLUTE, EXP, EXPM1, LOG, LOG1P, SQRT, TANH, SIGMOID, ERF, LGAMMA, DIGAMMA, TRIGAMMA, TRUNCATE,
  ADD, SUBTRACT, MULTIPLY, DIVIDE, MINIMUM, MAXIMUM, LESS, LESS_EQUAL, EQUAL, NOT_EQUAL, AND, OR, WHERE, MULTIPLY_ADD,
  MULTIPLY_SUBTRACT, SUBTRACT_PRODUCT, LOG_BETA
};

constexpr int64_t TILE = 256;      // numbers of a fusion that are computed at a time: all values of a fusion stay in the level-1 cache
constexpr int64_t SLOTS = 64;      // values of a tile, and operands of a fusion
constexpr int64_t LANES = 16;      // partial sums of a reduction of contiguous numbers

template <class T>
using Arrays = T* const*;

#define EACH(code, expression)                                  \
  case code:                                                    \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < count; i++) {  \
      [[maybe_unused]] const T x = a[i], y = b[i], z = c[i];    \
      target[i] = expression;                                   \
    }                                                           \
    return;

// Unary operations have their operand in `a`; `b` and `c` are then `a` as well.
template <class T>
void apply(int64_t operation, int64_t count, T* target, const T* a, const T* b, const T* c) {
  switch (operation) {
    EACH(ASSIGN, x)
    EACH(NEGATE, -x)
    EACH(ABSOLUTE, std::abs(x))
    EACH(EXP, functions::exp(x))
    EACH(EXPM1, functions::expm1(x))
    EACH(LOG, functions::log(x))
    EACH(LOG1P, functions::log1p(x))
    EACH(SQRT, std::sqrt(x))
    EACH(TANH, functions::tanh(x))
    EACH(SIGMOID, functions::sigmoid(x))
    EACH(ERF, functions::erf(x))
    EACH(LGAMMA, T(functions::lgamma(double(x))))
    EACH(DIGAMMA, T(functions::digamma(double(x))))
    EACH(TRIGAMMA, T(functions::trigamma(double(x))))
    EACH(TRUNCATE, std::trunc(x))
    EACH(ADD, x + y)
    EACH(SUBTRACT, x - y)
    EACH(MULTIPLY, x * y)
    EACH(DIVIDE, x / y)
    EACH(MINIMUM, x != x || x < y ? x : y)
    EACH(MAXIMUM, x != x || x > y ? x : y)
    EACH(LESS, T(x < y))
    EACH(LESS_EQUAL, T(x <= y))
    EACH(EQUAL, T(x == y))
    EACH(NOT_EQUAL, T(x != y))
    EACH(AND, T((x != 0) & (y != 0)))
    EACH(OR, T((x != 0) | (y != 0)))
    EACH(WHERE, x != 0 ? y : z)
    EACH(MULTIPLY_ADD, functions::fma(x, y, z))
    EACH(MULTIPLY_SUBTRACT, functions::fma(x, y, -z))
    EACH(SUBTRACT_PRODUCT, functions::fma(-x, y, z))
    EACH(LOG_BETA, T(functions::log_beta(double(x), double(y))))
  }
}

#undef EACH

// Element-wise operations on arrays with the same number of elements, tile by tile.
template <class T>
void run_fusion(const int64_t* words, Arrays<T> arrays) {
  alignas(64) static thread_local T scratch[SLOTS * TILE];
  struct Operand {
    int64_t source;
    T* data;
    const uint8_t* bytes;
    T* tile;
    const int64_t* shape;
  };
  Operand operands[SLOTS];
  const int64_t total = words[0], operand_count = words[1], operation_count = words[2];
  words += 3;
  for (int64_t i = 0; i < operand_count; i++) {
    Operand& operand = operands[i];
    operand.source = *words++;
    if (operand.source == SCRATCH) {
      operand.tile = scratch + TILE * *words++;
      continue;
    }
    operand.data = arrays[words[0]] + words[1];
    operand.bytes = reinterpret_cast<const uint8_t*>(arrays[words[0]]) + words[1];
    words += 2;
    if (operand.source == DIRECT) continue;
    operand.tile = scratch + TILE * *words++;
    if (operand.source == UNIFORM) {
      std::fill_n(operand.tile, std::min(TILE, total), *operand.data);
      continue;
    }
    operand.shape = words;
    words += 1 + 2 * words[0];
  }
  for (int64_t start = 0; start < total; start += TILE) {
    const int64_t count = std::min(TILE, total - start);
    for (int64_t i = 0; i < operand_count; i++) {
      Operand& operand = operands[i];
      if (operand.source == DIRECT) {
        operand.tile = operand.data + start;
      } else if (operand.source == STRIDED) {
        load(operand.tile, operand.data, operand.shape[0], operand.shape + 1, operand.shape + 1 + operand.shape[0], start, count);
      } else if (operand.source == BYTES) {
        load(operand.tile, operand.bytes, operand.shape[0], operand.shape + 1, operand.shape + 1 + operand.shape[0], start, count);
      }
    }
    const int64_t* operation = words;
    for (int64_t i = 0; i < operation_count; i++, operation += 5)
      apply(operation[0], count, operands[operation[1]].tile, operands[operation[2]].tile, operands[operation[3]].tile,
            operands[operation[4]].tile);
  }
}

// Copy a strided array to another one with the same sizes, or add it.
template <class T, bool adds>
void run_copy(const int64_t* words, Arrays<T> arrays) {
  const int64_t dimensions = words[0];
  const int64_t *sizes = words + 1, *source_strides = sizes + dimensions + 2, *target_strides = source_strides + dimensions + 2;
  const T* source = arrays[source_strides[-2]] + source_strides[-1];
  T* target = arrays[target_strides[-2]] + target_strides[-1];
  const int64_t length = sizes[dimensions - 1], source_stride = source_strides[dimensions - 1],
                target_stride = target_strides[dimensions - 1];
  for_each_run(dimensions, sizes, source_strides, [&](int64_t position, int64_t offset) {
    int64_t target_offset = 0;
    for (int64_t dimension = dimensions - 2; dimension >= 0; dimension--) {
      target_offset += position % sizes[dimension] * target_strides[dimension];
      position /= sizes[dimension];
    }
    if (adds)
#pragma GCC ivdep
      for (int64_t i = 0; i < length; i++) target[target_offset + i * target_stride] += source[offset + i * source_stride];
    else if (target_stride == 1)
      load_run(target + target_offset, source + offset, source_stride, length);
    else
      for (int64_t i = 0; i < length; i++) target[target_offset + i * target_stride] = source[offset + i * source_stride];
  });
}

template <class T>
struct Sum {
  static constexpr T start = 0;
  static T combine(T a, T b) { return a + b; }
};

template <class T>
struct Maximum {
  static constexpr T start = -std::numeric_limits<T>::infinity();
  static T combine(T a, T b) { return a != a || a > b ? a : b; }
};

// Reduce some dimensions of a strided array. The result is contiguous. Numbers are combined in the order of their indices; a run of at least
// LANES numbers that are next to each other is combined in LANES interleaved parts, and those in pairs.
template <class T, class Combine>
void reduce(const int64_t* words, Arrays<T> arrays) {
  const int64_t kept = words[0], reduced = words[1];
  const int64_t *sizes = words + 2, *strides = sizes + kept + reduced + 2, *target_words = strides + kept + reduced;
  const T* source = arrays[strides[-2]] + strides[-1];
  T* target = arrays[target_words[0]] + target_words[1];
  const int64_t *reduced_sizes = sizes + kept, *reduced_strides = strides + kept;
  const int64_t length = sizes[kept - 1], stride = strides[kept - 1];
  const int64_t run = reduced_sizes[reduced - 1], run_stride = reduced_strides[reduced - 1];
  if (length > 1 && stride == 1) {  // columns: vectors of results
    for_each_run(kept, sizes, strides, [&](int64_t position, int64_t offset) {
      T* results = target + position * length;
      std::fill_n(results, length, Combine::start);
      for_each_run(reduced, reduced_sizes, reduced_strides, [&](int64_t, int64_t reduced_offset) {
        for (int64_t k = 0; k < run; k++) {
          const T* row = source + offset + reduced_offset + k * run_stride;
#pragma GCC ivdep
          for (int64_t i = 0; i < length; i++) results[i] = Combine::combine(results[i], row[i]);
        }
      });
    });
    return;
  }
  for_each_run(kept, sizes, strides, [&](int64_t position, int64_t offset) {
    for (int64_t i = 0; i < length; i++) {
      const T* first = source + offset + i * stride;
      T result = Combine::start;
      for_each_run(reduced, reduced_sizes, reduced_strides, [&](int64_t, int64_t reduced_offset) {
        const T* numbers = first + reduced_offset;
        int64_t k = 0;
        if (run_stride == 1 && run >= LANES) {
          T lanes[LANES];
          std::copy_n(numbers, LANES, lanes);
          for (k = LANES; k + LANES <= run; k += LANES)
#pragma GCC ivdep
            for (int64_t lane = 0; lane < LANES; lane++) lanes[lane] = Combine::combine(lanes[lane], numbers[k + lane]);
          for (int64_t half = LANES / 2; half > 0; half /= 2)
            for (int64_t lane = 0; lane < half; lane++) lanes[lane] = Combine::combine(lanes[lane], lanes[lane + half]);
          result = Combine::combine(result, lanes[0]);
        }
        for (; k < run; k++) result = Combine::combine(result, numbers[k * run_stride]);
      });
      target[position * length + i] = result;
    }
  });
}

// Find the column of the first maximum in each row of a matrix. NaN counts as the greatest number, as in PyTorch.
template <class T>
void run_argmax(const int64_t* words, Arrays<T> arrays) {
  const int64_t rows = words[0], columns = words[1];
  const int64_t *matrix = words + 2, *target = matrix + 4;
  for (int64_t row = 0; row < rows; row++) {
    const T* numbers = arrays[matrix[0]] + matrix[1] + row * matrix[2];
    int64_t best = 0;
    for (int64_t column = 1; column < columns; column++) {
      const T greatest = numbers[best * matrix[3]], x = numbers[column * matrix[3]];
      if (greatest == greatest && !(x <= greatest)) best = column;
    }
    arrays[target[0]][target[1] + row] = T(best);
  }
}

template <class T>
product::Matrix<T> matrix(const int64_t* words, Arrays<T> arrays, int64_t batch) {
  return {arrays[words[0]] + words[1] + batch * words[2], words[3], words[4]};
}

// A batch of products of matrices. If the array of `from` is not negative, they are added to its rows, or to its only row.
template <class T>
void run_product(const int64_t* words, Arrays<T> arrays, bool packed) {
  const int64_t batches = words[0], rows = words[1], columns = words[2], inner = words[3];
  const int64_t *left = words + 4, *right = left + 5, *from = right + 5, *target = from + 4;
  for (int64_t batch = 0; batch < batches; batch++) {
    const product::Start<T> start{from[0] < 0 ? nullptr : arrays[from[0]] + from[1] + batch * from[2], from[3]};
    product::multiply<T>(rows, columns, inner, matrix<T>(left, arrays, batch), matrix<T>(right, arrays, batch), start,
                         {arrays[target[0]] + target[1] + batch * target[2], target[3]}, packed);
  }
}

// Multiply a matrix whose rows and columns are indexed by several dimensions each. The rows of the result are indexed like those of the matrix.
template <class T>
void run_indexed_product(const int64_t* words, Arrays<T> arrays) {
  const int64_t row_dimensions = words[0], inner_dimensions = words[1], width = words[2], adds = words[3];
  const int64_t *row_sizes = words + 4, *inner_sizes = row_sizes + row_dimensions, *left = inner_sizes + inner_dimensions;
  const int64_t *right = left + 2 + row_dimensions + inner_dimensions, *from = right + 4, *target = from + 2;
  const Offsets rows(row_dimensions, row_sizes, left + 2), columns(inner_dimensions, inner_sizes, left + 2 + row_dimensions);
  const Offsets result_rows(row_dimensions, row_sizes, target + 2);
  product::multiply_wide<T>(rows.count, width, columns.count, product::Indexed<T>{arrays[left[0]] + left[1], rows.data, columns.data},
                            {arrays[right[0]] + right[1], right[2], right[3]}, {from[0] < 0 ? nullptr : arrays[from[0]] + from[1], 0},
                            product::IndexedResult<T>{arrays[target[0]] + target[1], result_rows.data}, false, !adds);
}

// Pack the right matrix of several products.
template <class T>
void run_pack(const int64_t* words, Arrays<T> arrays) {
  const int64_t *right = words + 2, *target = right + 5;
  product::pack_all<T>(words[0], words[1], matrix<T>(right, arrays, 0), arrays[target[0]] + target[1]);
}

// Read or add to the elements of the rows of a matrix that are named by a matrix of column numbers. Elements that do not exist are NaN.
template <class T>
void run_indexed(const int64_t* words, Arrays<T> arrays, bool add) {
  const int64_t rows = words[0], columns = words[1], width = words[2];
  const int64_t *whole = words + 3, *index = whole + 4, *part = index + 4;
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++) {
      const T place = arrays[index[0]][index[1] + row * index[2] + column * index[3]];
      T& other = arrays[part[0]][part[1] + row * part[2] + column * part[3]];
      if (!(place >= 0 && place < width)) {
        if (!add) other = std::numeric_limits<T>::quiet_NaN();
        continue;
      }
      T& element = arrays[whole[0]][whole[1] + row * whole[2] + int64_t(place) * whole[3]];
      (add ? element : other) = add ? element + other : element;
    }
}

// Add to each row but the first a factor times the row before it; rows are `stride` numbers apart. The product and the sum are rounded.
template <class T>
void recur(int64_t steps, int64_t width, int64_t stride, const T* factors, T* row) {
  for (; steps > 0; steps--, factors += stride) {
    T* next = row + stride;
#pragma GCC ivdep
    for (int64_t i = 0; i < width; i++) next[i] += factors[i] * row[i];
    row = next;
  }
}

template <class T>
void run(const int64_t* words, const int64_t* end, Arrays<T> arrays) {
  for (; words < end; words += words[1]) {
    const int64_t* body = words + 2;
    switch (words[0]) {
      case FUSION: run_fusion<T>(body, arrays); break;
      case COPY: run_copy<T, false>(body, arrays); break;
      case REDUCE: body[0] ? reduce<T, Maximum<T>>(body + 1, arrays) : reduce<T, Sum<T>>(body + 1, arrays); break;
      case PRODUCT: run_product<T>(body, arrays, false); break;
      case PACK: run_pack<T>(body, arrays); break;
      case PACKED_PRODUCT: run_product<T>(body, arrays, true); break;
      case GATHER: run_indexed<T>(body, arrays, false); break;
      case SCATTER_ADD: run_indexed<T>(body, arrays, true); break;
      case ARGMAX: run_argmax<T>(body, arrays); break;
      case ADD_COPY: run_copy<T, true>(body, arrays); break;
      case INDEXED_PRODUCT: run_indexed_product<T>(body, arrays); break;
    }
  }
}

}  // namespace

extern "C" void lockstep_run_float(const int64_t* words, int64_t count, float* const* arrays) { run<float>(words, words + count, arrays); }

extern "C" void lockstep_run_double(const int64_t* words, int64_t count, double* const* arrays) { run<double>(words, words + count, arrays); }

extern "C" void lockstep_recur_float(int64_t steps, int64_t width, int64_t stride, const float* factors, float* row) {
  recur<float>(steps, width, stride, factors, row);
}

extern "C" void lockstep_recur_double(int64_t steps, int64_t width, int64_t stride, const double* factors, double* row) {
  recur<double>(steps, width, stride, factors, row);
}

// Whether this processor has the instructions for which the variant of this library with vectors of 512 bits is compiled.
extern "C" int lockstep_has_avx512() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
#else
  return 0;
#endif
}
