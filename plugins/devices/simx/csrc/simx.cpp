// A simulated accelerator on torch's PrivateUse1 key: host memory and the CPU's kernels behind storages, indices,
// streams, generators and memory statistics of its own, with faults on request. One translation unit: what takes the
// time is reading torch's headers, and so they are read once.
#include "kernels.h"

namespace simx {

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator())
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", read_scalar);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_to_whole_storage);
  m.impl("set_.source_Storage_storage_offset", set_to_storage);
  m.impl("set_.source_Tensor", set_to_tensor);
  m.impl("record_stream", record_stream);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("unfold", unfold);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

// A fallback comes after what torch composes for backends that have no kernel. Where the CPU has one, so has simx.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using c10::DispatchKey;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    auto operation = c10::Dispatcher::singleton().findOp(name);
    if (!operation || name.name.rfind("aten::", 0) != 0) continue;
    auto has = [&](DispatchKey key) { return operation->hasKernelForDispatchKey(key); };
    bool composed = has(DispatchKey::CompositeExplicitAutogradNonFunctional) ||
                    has(DispatchKey::CompositeExplicitAutograd) || has(DispatchKey::CompositeImplicitAutograd);
    if (composed && has(DispatchKey::CPU) && !has(DispatchKey::PrivateUse1)) {
      auto full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
    }
  }
}

// The copy reads conjugated and negated views itself; torch would resolve them by a clone, which is a copy, and so on.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

#define SIMX_LOWER_PRECISION(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define SIMX_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define SIMX_FP32_SET_OPT_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define SIMX_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(SIMX_LOWER_PRECISION)
  AT_FORALL_FP32(SIMX_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(SIMX_FP32_SET_OPT_DTYPE)
  AT_FORALL_PROMOTE(SIMX_PROMOTE)
}

int64_t device_count() {
  return options()->devices;
}

int64_t current_device() {
  return current_index;
}

void seed(int64_t index, int64_t value) {
  auto generator = hooks().getDefaultGenerator(static_cast<c10::DeviceIndex>(index));
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_current_seed(value);
}

Tensor rng_state(int64_t index) {
  return hooks().getDefaultGenerator(static_cast<c10::DeviceIndex>(index)).get_state();
}

void set_rng_state(int64_t index, const Tensor& state) {
  auto generator = hooks().getDefaultGenerator(static_cast<c10::DeviceIndex>(index));
  generator.set_state(state);
}

// Called once, as the library is loaded for the first time.
void start() {
  at::RegisterPrivateUse1HooksInterface(&hooks());
  std::atexit([] {
    if (options()->abort_at_exit) std::abort();
  });
}

TORCH_LIBRARY(simx, m) {
  m.def("start() -> ()", start);
  m.def("configure(Dict(str, str) options) -> ()", set_options);
  m.def("device_count() -> int", device_count);
  m.def("current_device() -> int", current_device);
  m.def("seed(int index, int value) -> ()", seed);
  m.def("rng_state(int index) -> Tensor", rng_state);
  m.def("set_rng_state(int index, Tensor state) -> ()", set_rng_state);
}

} // namespace simx
