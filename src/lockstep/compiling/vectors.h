// Vectors of the instruction set for which this file is compiled.

#pragma once
#include <cmath>
#include <cstdint>
#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#endif

template <class T>
struct Vector;

#if defined(__AVX512F__)

template <>
struct Vector<float> {
  static constexpr int width = 16;
  __m512 value;
  static Vector load(const float* source) { return {_mm512_loadu_ps(source)}; }
  static Vector fill(float x) { return {_mm512_set1_ps(x)}; }
  void store(float* target) const { _mm512_storeu_ps(target, value); }
  void add_product(Vector a, Vector b) { value = _mm512_fmadd_ps(a.value, b.value, value); }
};

template <>
struct Vector<double> {
  static constexpr int width = 8;
  __m512d value;
  static Vector load(const double* source) { return {_mm512_loadu_pd(source)}; }
  static Vector fill(double x) { return {_mm512_set1_pd(x)}; }
  void store(double* target) const { _mm512_storeu_pd(target, value); }
  void add_product(Vector a, Vector b) { value = _mm512_fmadd_pd(a.value, b.value, value); }
};

#elif defined(__AVX2__) && defined(__FMA__)

template <>
struct Vector<float> {
  static constexpr int width = 8;
  __m256 value;
  static Vector load(const float* source) { return {_mm256_loadu_ps(source)}; }
  static Vector fill(float x) { return {_mm256_set1_ps(x)}; }
  void store(float* target) const { _mm256_storeu_ps(target, value); }
  void add_product(Vector a, Vector b) { value = _mm256_fmadd_ps(a.value, b.value, value); }
};

template <>
struct Vector<double> {
  static constexpr int width = 4;
  __m256d value;
  static Vector load(const double* source) { return {_mm256_loadu_pd(source)}; }
  static Vector fill(double x) { return {_mm256_set1_pd(x)}; }
  void store(double* target) const { _mm256_storeu_pd(target, value); }
  void add_product(Vector a, Vector b) { value = _mm256_fmadd_pd(a.value, b.value, value); }
};

#else

template <class T>
struct Vector {
  static constexpr int width = 8;
  T value[width];
  static Vector load(const T* source) {
    Vector result;
    for (int i = 0; i < width; i++) result.value[i] = source[i];
    return result;
  }
  static Vector fill(T x) {
    Vector result;
    for (int i = 0; i < width; i++) result.value[i] = x;
    return result;
  }
  void store(T* target) const {
    for (int i = 0; i < width; i++) target[i] = value[i];
  }
  void add_product(Vector a, Vector b) {
    for (int i = 0; i < width; i++) value[i] = std::fma(a.value[i], b.value[i], value[i]);
  }
};

#endif
