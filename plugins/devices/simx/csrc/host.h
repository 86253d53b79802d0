// The same bytes as a tensor of the CPU, and the way back.
#pragma once
#include "random.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

namespace simx {

inline c10::DeviceIndex placed(c10::DeviceIndex index) {
  check_index(index);
  return options()->one_index ? 0 : index;
}

inline c10::ScalarType stored_dtype(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(!options()->no_dtypes.count(dtype_name(dtype)), "simx does not support ", dtype_name(dtype));
  return dtype == c10::kDouble && options()->narrow_float64 ? c10::kFloat : dtype;
}

inline bool on_simx(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSimx;
}

// While a CPU kernel computes for the device: autograd and autocast have had their turn, and a profiler is to see one
// operation of the device, not a second one of the CPU.
struct HostSection {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  at::DisableRecordFunctionGuard unrecorded;
};

// Return a CPU tensor on the bytes of a device tensor; valid only as long as that one lives.
inline at::Tensor host_view(const at::Tensor& tensor) {
  if (!on_simx(tensor)) return tensor;
  stored_dtype(tensor.scalar_type());
  const auto& storage = tensor.storage();
  c10::Storage bytes(c10::Storage::use_byte_size_t{}, storage.nbytes(),
                     c10::DataPtr(storage.mutable_data(), c10::Device(c10::kCPU)), c10::GetAllocator(c10::kCPU), true);
  auto view = at::detail::make_tensor<c10::TensorImpl>(std::move(bytes), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                       tensor.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) view._set_conj(true);
  if (tensor.is_neg()) view._set_neg(true);
  return view;
}

inline at::Tensor empty_on_device(at::IntArrayRef size, at::IntArrayRef stride, c10::ScalarType dtype,
                                  c10::DeviceIndex index) {
  c10::DeviceGuard guard(c10::Device(kSimx, placed(index)));
  return at::detail::empty_strided_generic(size, stride, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           stored_dtype(dtype));
}

// Return a device tensor with the values and strides of a CPU tensor.
inline at::Tensor on_device(const at::Tensor& host, c10::DeviceIndex index) {
  if (!host.defined() || on_simx(host)) return host;
  auto plain = host._is_zerotensor() ? at::zeros(host.sizes(), host.options()) : host.resolve_conj().resolve_neg();
  auto device = empty_on_device(plain.sizes(), plain.strides(), plain.scalar_type(), index);
  if (device.scalar_type() != plain.scalar_type()) {
    host_view(device).copy_(plain);
  } else if (auto bytes = device.storage().nbytes()) {
    // By bytes: an expanded result has several elements in one place, which copy_ refuses to write.
    std::memcpy(device.storage().mutable_data(), plain.const_data_ptr(), bytes);
  }
  return device;
}

} // namespace simx
