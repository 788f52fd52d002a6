// Strided arrays: visiting their elements, and copying them to contiguous memory.

#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>

constexpr int64_t DIMENSIONS = 6;
constexpr int64_t SHORT = 16;  // elements of a run below which runs are loaded together

// Call `visit(position, offset)` for the runs of a strided array: all indices but the last one. `strides` are those of the offset.
template <class Visit>
void for_each_run(int64_t dimensions, const int64_t* sizes, const int64_t* strides, Visit visit) {
  int64_t index[DIMENSIONS] = {}, offset = 0;
  for (int64_t position = 0;; position++) {
    visit(position, offset);
    int64_t dimension = dimensions - 2;
    for (; dimension >= 0; dimension--) {
      offset += strides[dimension];
      if (++index[dimension] < sizes[dimension]) break;
      offset -= strides[dimension] * sizes[dimension];
      index[dimension] = 0;
    }
    if (dimension < 0) return;
  }
}

template <class T, class Source>
void load_run(T* target, const Source* source, int64_t stride, int64_t count) {
  if (stride == 1)
    std::copy_n(source, count, target);
  else if (stride == 0)
    std::fill_n(target, count, *source);
  else
    for (int64_t i = 0; i < count; i++) target[i] = source[i * stride];
}

// Copy `runs` short runs. Elements with the same place in their runs, such as those of one channel of an image, follow each other in memory.
template <class T, class Source>
void load_short_runs(T* target, const Source* source, int64_t runs, int64_t run_stride, int64_t length, int64_t stride) {
  for (int64_t i = 0; i < length; i++, source += stride)
    for (int64_t run = 0; run < runs; run++) target[run * length + i] = source[run * run_stride];
}

// Copy `count` elements, from the one with the linear index `start` on, of a strided array to contiguous memory.
template <class T, class Source>
void load(T* target, const Source* source, int64_t dimensions, const int64_t* sizes, const int64_t* strides, int64_t start, int64_t count) {
  int64_t index[DIMENSIONS], offset = 0;
  for (int64_t dimension = dimensions - 1; dimension >= 0; dimension--) {
    index[dimension] = start % sizes[dimension];
    start /= sizes[dimension];
    offset += index[dimension] * strides[dimension];
  }
  const int64_t last = dimensions - 1, length = sizes[last];
  while (true) {
    int64_t loaded = std::min(count, length - index[last]);
    if (length < SHORT && index[last] == 0 && count >= length && dimensions > 1) {
      const int64_t runs = std::min(count / length, sizes[last - 1] - index[last - 1]);
      load_short_runs(target, source + offset, runs, strides[last - 1], length, strides[last]);
      loaded = runs * length;
      index[last - 1] += runs - 1;
      offset += (runs - 1) * strides[last - 1];
    } else {
      load_run(target, source + offset, strides[last], loaded);
    }
    target += loaded;
    count -= loaded;
    if (count == 0) return;
    offset -= index[last] * strides[last];
    index[last] = 0;
    for (int64_t dimension = last - 1; dimension >= 0; dimension--) {
      offset += strides[dimension];
      if (++index[dimension] < sizes[dimension]) break;
      offset -= strides[dimension] * sizes[dimension];
      index[dimension] = 0;
    }
  }
}

// The offsets of all elements of a strided array in the order of their indices. (A vector would need the library of C++.)
struct Offsets {
  int64_t count = 1;
  int64_t* data;
  Offsets(int64_t dimensions, const int64_t* sizes, const int64_t* strides) {
    for (int64_t dimension = 0; dimension < dimensions; dimension++) count *= sizes[dimension];
    data = static_cast<int64_t*>(std::malloc(count * sizeof(int64_t)));
    if (count == 0) return;
    const int64_t length = sizes[dimensions - 1], stride = strides[dimensions - 1];
    for_each_run(dimensions, sizes, strides, [&](int64_t position, int64_t offset) {
      for (int64_t i = 0; i < length; i++) data[position * length + i] = offset + i * stride;
    });
  }
  ~Offsets() { std::free(data); }
};
