// Functions of one number with the same bits on every processor: operations of fixed order and fused multiply-adds, without the C library,
// whose code depends on the processor. Loops over them are vectorized, except for the functions of positive numbers at the end. NaN and infinity
// propagate as in PyTorch.

#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace functions {

template <class To, class From>
inline To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}

template <class T>
struct Format;

template <>
struct Format<float> {
  using Integer = int32_t;
  static constexpr int fraction = 23, bias = 127;
  static constexpr float least_exponent = -104.0f, greatest_exponent = 89.0f;    // exp is 0 or infinite beyond
  static constexpr float rounder = 12582912.0f;                                   // 1.5 * 2^23
  static constexpr float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;      // the sum is ln 2; the first has 9 bits
  static constexpr int exp_terms = 7, log_terms = 5;
};

template <>
struct Format<double> {
  using Integer = int64_t;
  static constexpr int fraction = 52, bias = 1023;
  static constexpr double least_exponent = -746.0, greatest_exponent = 710.0;
  static constexpr double rounder = 6755399441055744.0;                           // 1.5 * 2^52
  static constexpr double ln2_high = 6.93147180369123816490e-01, ln2_low = 1.90821492927058770002e-10;
  static constexpr int exp_terms = 13, log_terms = 12;
};

constexpr double INVERSE_FACTORIALS[] = {
    1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800,
    1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800.0};

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }

template <class T>
inline T power_of_two(typename Format<T>::Integer exponent) {
  return bits<T>((exponent + Format<T>::bias) << Format<T>::fraction);
}

// 2^n e^r with n the nearest integer to x / ln 2, so that |r| < 0.35, and the Taylor series of e^r.
template <class T>
inline T exp(T x) {
  using F = Format<T>;
  using Integer = typename F::Integer;
  T bounded = x < F::least_exponent ? F::least_exponent : x;  // comparisons with NaN are false
  bounded = bounded > F::greatest_exponent ? F::greatest_exponent : bounded;
  const T shifted = fma(bounded, T(1.4426950408889634), F::rounder);
  const T n = shifted - F::rounder;
  const T r = fma(n, -F::ln2_low, fma(n, -F::ln2_high, bounded));
  T series = T(INVERSE_FACTORIALS[F::exp_terms]);
#pragma GCC unroll 16
  for (int k = F::exp_terms - 1; k >= 0; k--) series = fma(series, r, T(INVERSE_FACTORIALS[k]));
  const Integer exponent = bits<Integer>(shifted) - bits<Integer>(F::rounder), half = exponent >> 1;
  return series * power_of_two<T>(half) * power_of_two<T>(exponent - half);  // two factors: the power may not be a normal number
}

// e ln 2 + 2 artanh((m - 1) / (m + 1)) for x = m 2^e with m between the square roots of 1/2 and 2, and the series of artanh.
template <class T>
inline T log(T x) {
  using F = Format<T>;
  using Integer = typename F::Integer;
  const bool subnormal = x < std::numeric_limits<T>::min();
  const T scaled = subnormal ? x * power_of_two<T>(F::fraction + 1) : x;
  const Integer pattern = bits<Integer>(scaled), root = bits<Integer>(T(0.70710678118654752));
  const Integer exponent = (pattern - root) >> F::fraction;
  const T m = bits<T>(pattern - (exponent << F::fraction));
  const T s = (m - 1) / (m + 1), square = s * s;
  T series = T(1.0 / (2 * F::log_terms + 1));
#pragma GCC unroll 16
  for (int k = F::log_terms - 1; k >= 0; k--) series = fma(series, square, T(1.0 / (2 * k + 1)));
  const T e = T(exponent) - (subnormal ? T(F::fraction + 1) : T(0));
  T result = fma(e, F::ln2_high, fma(e, F::ln2_low, 2 * s * series));
  result = x == std::numeric_limits<T>::infinity() ? x : result;
  result = x == 0 ? -std::numeric_limits<T>::infinity() : result;
  return x < 0 || x != x ? std::numeric_limits<T>::quiet_NaN() : result;
}

// log(1 + x) and e^x - 1: the rounding error of u cancels (Goldberg 1991, theorem 4; Kahan's e^x - 1).
template <class T>
inline T log1p(T x) {
  const T u = 1 + x, difference = u - 1;
  const T result = difference == 0 ? x : log(u) * (x / (difference == 0 ? T(1) : difference));
  return u == std::numeric_limits<T>::infinity() ? x : result;
}

template <class T>
inline T expm1(T x) {
  const T u = exp(x), difference = u - 1;
  const bool tiny = difference == 0, least = difference == -1, huge = u == std::numeric_limits<T>::infinity();
  T result = difference * (x / (tiny || least || huge ? T(1) : log(u)));
  result = tiny ? x : result;
  result = least ? T(-1) : result;
  return huge ? u : result;
}

// x P(x^2) / Q(x^2), fitted to 2e-8 up to |x| = 9, where tanh is 1 up to rounding. Error: 4e-7 of the value.
inline float tanh(float x) {
  float bounded = x < -9.0f ? -9.0f : x;
  bounded = bounded > 9.0f ? 9.0f : bounded;
  const float square = bounded * bounded;
  const float p = fma(fma(fma(fma(1.335491344e-08f, square, 2.060928902e-05f), square, 3.495601896e-03f), square, 1.338103772e-01f), square, 9.999999796e-01f);
  const float q = fma(fma(fma(fma(7.776668600e-07f, square, 3.285656452e-04f), square, 2.587703601e-02f), square, 4.671435337e-01f), square, 1.0f);
  const float result = bounded * p / q;
  return x >= 9.0f ? 1.0f : x <= -9.0f ? -1.0f : result;
}

inline double tanh(double x) {
  const double size = x < 0 ? -x : x, e = expm1(2 * (size > 22 ? 22.0 : size));
  const double result = e / (e + 2);
  return x < 0 ? -result : result;
}

template <class T>
inline T sigmoid(T x) {
  return 1 / (1 + exp(-x));
}

// Chebyshev series of erfc (Press et al., Numerical Recipes, 3rd edition, section 6.2.2), with an error of 1e-16.
inline double erf(double x) {
  constexpr double coefficients[] = {
      -1.3026537197817094, 6.4196979235649026e-1, 1.9476473204185836e-2, -9.561514786808631e-3, -9.46595344482036e-4,
      3.66839497852761e-4, 4.2523324806907e-5, -2.0278578112534e-5, -1.624290004647e-6, 1.303655835580e-6,
      1.5626441722e-8, -8.5238095915e-8, 6.529054439e-9, 5.059343495e-9, -9.91364156e-10, -2.27365122e-10,
      9.6467911e-11, 2.394038e-12, -6.886027e-12, 8.94487e-13, 3.13092e-13, -1.12708e-13, 3.81e-16, 7.106e-15,
      -1.523e-15, -9.4e-17, 1.21e-16, -2.8e-17};
  const double size = x < 0 ? -x : x, t = 2 / (2 + size), ty = 4 * t - 2;
  double d = 0, dd = 0;
#pragma GCC unroll 32
  for (int j = 27; j > 0; j--) {
    const double next = fma(ty, d, coefficients[j] - dd);
    dd = d;
    d = next;
  }
  const double tail = t * exp(fma(-size, size, 0.5 * fma(ty, d, coefficients[0])) - dd);
  return x < 0 ? tail - 1 : 1 - tail;
}

inline float erf(float x) { return float(erf(double(x))); }

// Functions of positive numbers (negative ones give NaN): the recurrence up to 10, then Stirling's series (Abramowitz and Stegun 6.1.40, 6.3.18, 6.4.12).
inline double lgamma(double x) {
  if (!(x > 0)) return x == 0 ? std::numeric_limits<double>::infinity() : NAN;
  if (x == std::numeric_limits<double>::infinity()) return x;
  double product = 1;
  for (; x < 10; x += 1) product *= x;
  const double inverse = 1 / x, square = inverse * inverse;
  double series = -1.0 / 360360 * 691;
  series = fma(series, square, 1.0 / 1188);
  series = fma(series, square, -1.0 / 1680);
  series = fma(series, square, 1.0 / 1260);
  series = fma(series, square, -1.0 / 360);
  series = fma(series, square, 1.0 / 12);
  return (x - 0.5) * log(x) - x + 0.91893853320467274178 + series * inverse - log(product);
}

inline double log_beta(double x, double y) { return lgamma(x) + lgamma(y) - lgamma(x + y); }

inline double digamma(double x) {
  if (!(x > 0)) return x == 0 ? -std::numeric_limits<double>::infinity() : NAN;
  double shift = 0;
  for (; x < 10; x += 1) shift += 1 / x;
  const double inverse = 1 / x, square = inverse * inverse;
  double series = 691.0 / 32760;
  series = fma(series, square, -1.0 / 132);
  series = fma(series, square, 1.0 / 240);
  series = fma(series, square, -1.0 / 252);
  series = fma(series, square, 1.0 / 120);
  series = fma(series, square, -1.0 / 12);
  return log(x) - 0.5 * inverse + series * square - shift;
}

inline double trigamma(double x) {
  if (!(x > 0)) return x == 0 ? std::numeric_limits<double>::infinity() : NAN;
  double shift = 0;
  for (; x < 10; x += 1) shift += 1 / (x * x);
  const double inverse = 1 / x, square = inverse * inverse;
  double series = 7.0 / 6;
  series = fma(series, square, -691.0 / 2730);
  series = fma(series, square, 5.0 / 66);
  series = fma(series, square, -1.0 / 30);
  series = fma(series, square, 1.0 / 42);
  series = fma(series, square, -1.0 / 30);
  series = fma(series, square, 1.0 / 6);
  return inverse + 0.5 * square + series * square * inverse + shift;
}

}  // namespace functions
