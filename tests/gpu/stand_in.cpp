// Two simulated GPUs, for machines without any. Their tensors have separate memory and are computed by the CPU. As on real GPUs, operations refuse
// tensors of different devices. So a test detects mixed devices and invalid reads, but not errors that involve streams, rounding or NCCL.
// PyTorch checks only once whether there are GPUs, so this library is loaded before PyTorch.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/library.h>
#include <set>

namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

constexpr int COUNT = 2;
thread_local c10::DeviceIndex current = 0;

c10::Device gpu(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }
c10::Stream only(c10::Device device) { return c10::Stream(c10::Stream::DEFAULT, device.has_index() ? device : gpu(current)); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
  c10::DeviceType type() const override { return static_type; }
  c10::Device getDevice() const override { return gpu(current); }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Stream getStream(c10::Device device) const override { return only(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return only(stream.device()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return only(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return only(device); }
  c10::DeviceIndex deviceCount() const noexcept override { return COUNT; }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto block = c10::GetCPUAllocator()->allocate(bytes);
    auto* data = block.get();
    return {data, block.release_context(), block.get_deleter(), gpu(current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetCPUAllocator()->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
} memory;
REGISTER_ALLOCATOR(c10::DeviceType::CUDA, &memory)

constexpr c10::DispatchKeySet KEYS(c10::DispatchKey::CUDA);

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &memory, KEYS, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &memory, KEYS, c10::dtype_or_default(dtype));
}

Tensor on_cpu(const Tensor& tensor) {
  if (tensor.device().is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU).requires_grad(false));
}

Tensor& copy_(Tensor& self, const Tensor& source, bool) {
  at::NoGradGuard guard;
  on_cpu(self).copy_(on_cpu(source));
  return self;
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  auto bytes = impl->numel() * impl->itemsize() + impl->storage_offset() * impl->itemsize();
  if (bytes > (int64_t)impl->storage().nbytes()) {
    auto fresh = memory.allocate(bytes);
    memcpy(fresh.get(), impl->storage().data(), impl->storage().nbytes());
    impl->storage().set_data_ptr_noswap(std::move(fresh));
    impl->storage().set_nbytes(bytes);
  }
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(source);
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(size, stride);
  return self;
}

Tensor copy_from(const Tensor& source, const Tensor& target, bool) {
  Tensor result = target;
  copy_(result, source, false);
  return target;
}

Tensor copy_from_and_resize(const Tensor& source, const Tensor& target) {
  if (target.sizes() != source.sizes()) resize_(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

Tensor with(const Tensor& gates, const Maybe& bias) { return bias && bias->defined() ? gates + *bias : gates; }

// Without cuDNN, PyTorch has only CUDA kernels for LSTM and GRU cells.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cell, const Maybe& bias1, const Maybe& bias2) {
  auto gates = (with(input, bias1) + with(hidden, bias2)).chunk(4, 1);
  auto i = gates[0].sigmoid(), f = gates[1].sigmoid(), g = gates[2].tanh(), o = gates[3].sigmoid();
  auto next = f * cell + i * g;
  return {o * next.tanh(), next, at::cat({i, f, g, o}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Maybe& to_hidden, const Maybe& to_cell, const Tensor& cell, const Tensor& next,
                                                      const Tensor& saved, bool bias) {
  auto gates = saved.chunk(4, 1);
  auto i = gates[0], f = gates[1], g = gates[2], o = gates[3], squashed = next.tanh();
  auto h = to_hidden && to_hidden->defined() ? *to_hidden : at::zeros_like(next);
  auto c = h * o * (1 - squashed * squashed);
  if (to_cell && to_cell->defined()) c = c + *to_cell;
  auto all = at::cat({c * g * i * (1 - i), c * cell * f * (1 - f), c * i * (1 - g * g), h * squashed * o * (1 - o)}, 1);
  return {all, c * f, bias ? all.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& state, const Maybe& bias1, const Maybe& bias2) {
  auto input_gates = with(input, bias1).chunk(3, 1), hidden_gates = with(hidden, bias2).chunk(3, 1);
  auto r = (input_gates[0] + hidden_gates[0]).sigmoid(), z = (input_gates[1] + hidden_gates[1]).sigmoid(), n = (input_gates[2] + r * hidden_gates[2]).tanh();
  return {n + z * (state - n), at::cat({r, z, n, state, hidden_gates[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& to_state, const Tensor& saved, bool bias) {
  auto parts = saved.chunk(5, 1);
  auto r = parts[0], z = parts[1], n = parts[2], state = parts[3], past = parts[4];
  auto to_n = to_state * (1 - z) * (1 - n * n), to_r = to_n * past * r * (1 - r), to_z = to_state * (state - n) * z * (1 - z);
  auto to_input = at::cat({to_r, to_z, to_n}, 1), to_hidden = at::cat({to_r, to_z, to_n * r}, 1);
  return {to_input, to_hidden, to_state * z, bias ? to_input.sum(0) : Tensor(), bias ? to_hidden.sum(0) : Tensor()};
}

const std::set<std::string> INDEXED{"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};

// Tensors without dimensions may be on any device.
void check(const Tensor& tensor, const std::string& name, std::optional<c10::Device>& device) {
  if (!tensor.defined() || tensor.dim() == 0) return;
  if (!device && tensor.is_cuda()) device = tensor.device();
  TORCH_CHECK(device == tensor.device(), "Expected all tensors to be on the same device, but ", name, " got one of ", tensor.sizes(), " on ", tensor.device());
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto name = toString(op.schema().operator_name());
  auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  std::optional<c10::Device> device;
  if (INDEXED.count(op.schema().operator_name().name)) {
    check(arguments[0].toTensor(), name, device);  // the indices may be on the CPU
  } else {
    for (const c10::IValue& value : arguments) {
      if (value.isTensor()) check(value.toTensor(), name, device);
      if (value.isTensorList()) for (const Tensor& tensor : value.toTensorVector()) check(tensor, name, device);
    }
  }
  at::native::cpu_fallback(op, stack, true);
}

// This PyTorch is built without gloo's all-reduce for CUDA.
void allreduce(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t begin = stack->size() - op.schema().arguments().size();
  const auto tensors = (*stack)[begin].toTensorVector();
  std::vector<Tensor> copies;
  for (const auto& tensor : tensors) copies.push_back(on_cpu(tensor));
  (*stack)[begin] = copies;
  op.callBoxed(stack);
  (*stack)[begin] = tensors;
}

struct Timer final : c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override { return getTimeRef(end) - getTimeRef(start); }
};

// Registering the all-reduce warns that it replaces a kernel, which is intended.
struct IgnoreWarnings final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
} ignore_warnings;
auto* const default_handler = c10::WarningUtils::get_warning_handler();
const bool warnings_disabled = (c10::WarningUtils::set_warning_handler(&ignore_warnings), true);
TORCH_LIBRARY_IMPL(c10d, CUDA, m) { m.impl("allreduce_", torch::CppFunction::makeFromBoxedFunction<&allreduce>()); }
const bool warnings_enabled = (c10::WarningUtils::set_warning_handler(default_handler), true);

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gru_cell_backward));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
}
}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ::Timer)
}

namespace at {
struct CUDAHooks final : CUDAHooksInterface {
  CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return current; }
  int getNumGPUs() const override { return COUNT; }
  DeviceIndex deviceCount() const override { return COUNT; }
  DeviceIndex getCurrentDevice() const override { return current; }
  bool isAvailable() const override { return true; }
  bool isBuilt() const override { return true; }
};
REGISTER_CUDA_HOOKS(CUDAHooks)
}

extern "C" int current_gpu() { return current; }
extern "C" void choose_gpu(int index) { current = static_cast<c10::DeviceIndex>(index); }
