// Calls of lockstep_product from the code that inductor generates, where tensors are handles.

#pragma once
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

extern "C" void lockstep_product(int64_t rows, int64_t columns, int64_t inner, const float* left, int64_t left_row_stride,
                                 int64_t left_column_stride, const float* right, int64_t right_row_stride,
                                 int64_t right_column_stride, const float* bias, float* result, int64_t result_row_stride);

// Compute `result = left @ right + bias`. Nothing can fail: the tensors exist, and their dtype and shapes are those that were compiled.
static AOTITorchError aoti_torch_lockstep_addmm(AtenTensorHandle result, AtenTensorHandle left, AtenTensorHandle right,
                                                AtenTensorHandle bias) {
  void *left_data, *right_data, *result_data, *bias_data = nullptr;
  int64_t *left_sizes, *left_strides, *right_sizes, *right_strides, *result_strides;
  aoti_torch_get_data_ptr(left, &left_data);
  aoti_torch_get_sizes(left, &left_sizes);
  aoti_torch_get_strides(left, &left_strides);
  aoti_torch_get_data_ptr(right, &right_data);
  aoti_torch_get_sizes(right, &right_sizes);
  aoti_torch_get_strides(right, &right_strides);
  aoti_torch_get_data_ptr(result, &result_data);
  aoti_torch_get_strides(result, &result_strides);
  if (bias) aoti_torch_get_data_ptr(bias, &bias_data);
  lockstep_product(left_sizes[0], right_sizes[1], left_sizes[1], (const float*)left_data, left_strides[0], left_strides[1],
                   (const float*)right_data, right_strides[0], right_strides[1], (const float*)bias_data,
                   (float*)result_data, result_strides[0]);
  return AOTI_TORCH_SUCCESS;
}

// Compute `result = left @ right`.
static AOTITorchError aoti_torch_lockstep_mm(AtenTensorHandle result, AtenTensorHandle left, AtenTensorHandle right) {
  return aoti_torch_lockstep_addmm(result, left, right, nullptr);
}
