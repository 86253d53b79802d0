// The kernels that a backend has to own: memory, copies, views, and what torch asks of an accelerator in place of the
// operations it composes on a CPU (convolutions, cells of recurrent layers).
#pragma once
#include "fallback.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_cpu_dispatch.h>
#include <ATen/ops/as_strided_cpu_dispatch.h>
#include <ATen/ops/set_cpu_dispatch.h>
#include <ATen/ops/unfold_cpu_dispatch.h>
#include <ATen/ops/view_cpu_dispatch.h>

namespace simx {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// ---- memory

inline c10::DeviceIndex index_of(std::optional<c10::Device> device) {
  return placed(device && device->has_index() ? device->index() : current_index);
}

inline Tensor empty(IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                    std::optional<c10::Device> device, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(c10::Device(kSimx, index_of(device)));
  return at::detail::empty_generic(size, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   stored_dtype(c10::dtype_or_default(dtype)), format);
}

inline Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<c10::ScalarType> dtype,
                            std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  return empty_on_device(size, stride, c10::dtype_or_default(dtype), index_of(device));
}

inline Tensor copy_from(const Tensor& source, const Tensor& destination, bool) {
  before("aten::_copy_from");
  HostSection section;
  auto written = host_view(destination).copy_(host_view(source));
  make_wrong("aten::_copy_from", {written}); // and never flushed: a copy computes nothing
  if (on_simx(destination)) hide(stream_here(), destination.storage());
  return destination;
}

inline Tensor copy_from_and_resize(const Tensor& source, const Tensor& destination) {
  destination.resize_(source.sizes());
  return copy_from(source, destination, false);
}

inline c10::Scalar read_scalar(const Tensor& tensor) {
  before("aten::_local_scalar_dense");
  HostSection section;
  return host_view(tensor).item();
}

inline const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  c10::DeviceGuard guard(self.device()); // the storage grows by what the allocator gives, which is on the current index
  return at::native::resize_(self, size, format);
}

inline Tensor& set_to_storage(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  return at::cpu::set_(self, std::move(source), offset, size, stride);
}

inline Tensor& set_to_whole_storage(Tensor& self, c10::Storage source) {
  auto count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_to_storage(self, std::move(source), 0, {count}, {1});
}

inline Tensor& set_to_tensor(Tensor& self, const Tensor& source) {
  return set_to_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

inline void record_stream(Tensor&, c10::Stream) {} // nothing is freed while it is in use: the device is synchronous

// ---- views: the CPU's kernels read and write sizes and strides alone

inline Tensor kept_apart(const Tensor& view) {
  return options()->copying_views ? view.clone() : view;
}

inline Tensor as_strided(const Tensor& self, IntArrayRef size, IntArrayRef stride, std::optional<int64_t> offset) {
  return kept_apart(at::cpu::as_strided(self, size, stride, offset));
}

inline Tensor view(const Tensor& self, IntArrayRef size) {
  return kept_apart(at::cpu::view(self, size));
}

inline Tensor reshape_alias(const Tensor& self, IntArrayRef size, IntArrayRef stride) {
  return kept_apart(at::cpu::_reshape_alias(self, size, stride));
}

inline Tensor unfold(const Tensor& self, int64_t dim, int64_t size, int64_t step) {
  return kept_apart(at::cpu::unfold(self, dim, size, step));
}

// ---- what is computed on the host by several of the CPU's operations

inline OptionalTensor host_view(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? OptionalTensor(host_view(*tensor)) : std::nullopt;
}

// One such operation: its faults, and its results on the device.
class Composed {
 public:
  Composed(const char* name, const Tensor& like) : name_(name), index_(like.device().index()) { before(name); }

  Tensor operand(const Tensor& tensor) const {
    return tf32_in_cudnn() ? rounded_to_tf32(host_view(tensor)) : host_view(tensor);
  }

  template <size_t N>
  std::array<Tensor, N> results(std::array<Tensor, N> computed) const {
    spoil(name_, {computed.begin(), computed.end()});
    if (options()->cpu_result.count(name_)) return computed;
    for (auto& tensor : computed) {
      tensor = on_device(tensor, index_);
      if (on_simx(tensor)) hide(stream_here(), tensor.storage());
    }
    return computed;
  }

 private:
  std::string name_;
  c10::DeviceIndex index_;
  HostSection section_;
};

inline Tensor convolution(const Tensor& input, const Tensor& weight, const OptionalTensor& bias, IntArrayRef stride,
                          IntArrayRef padding, IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                          int64_t groups) {
  Composed call("aten::convolution", input);
  auto output = at::convolution(call.operand(input), call.operand(weight), host_view(bias), stride, padding, dilation,
                                transposed, output_padding, groups);
  return call.results<1>({output})[0];
}

inline std::tuple<Tensor, Tensor, Tensor> convolution_backward(const Tensor& grad_output, const Tensor& input,
                                                               const Tensor& weight, IntArrayRef stride,
                                                               IntArrayRef padding, IntArrayRef dilation,
                                                               bool transposed, IntArrayRef output_padding,
                                                               int64_t groups, std::array<bool, 3> mask) {
  Composed call("aten::convolution_backward", input);
  std::vector<int64_t> bias_sizes{transposed ? weight.size(1) * groups : weight.size(0)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      call.operand(grad_output), call.operand(input), call.operand(weight), at::OptionalIntArrayRef(bias_sizes), stride,
      padding, dilation, transposed, output_padding, groups, mask);
  auto grads = call.results<3>({of_input, of_weight, of_bias});
  return {grads[0], grads[1], grads[2]};
}

// The gates are products, so that they are as precise as products of cuDNN are.
inline Tensor with_bias(const Composed& call, const Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? call.operand(gates) + host_view(*bias) : call.operand(gates).clone();
}

// Return the values of a fast function in a cell.
inline Tensor roughly(const Tensor& values) {
  return off_by(values, options()->rough_cells);
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                                    const Tensor& cx, const OptionalTensor& input_bias,
                                                    const OptionalTensor& hidden_bias) {
  Composed call("aten::_thnn_fused_lstm_cell", input_gates);
  auto gates = with_bias(call, hidden_gates, hidden_bias).add_(with_bias(call, input_gates, input_bias)).chunk(4, 1);
  auto in = roughly(gates[0].sigmoid()), forget = roughly(gates[1].sigmoid());
  auto cell = roughly(gates[2].tanh()), out = roughly(gates[3].sigmoid());
  auto cy = (forget * host_view(cx)).add_(in * cell);
  auto results = call.results<3>({out * roughly(cy.tanh()), cy, at::cat({in, forget, cell, out}, 1)});
  return {results[0], results[1], results[2]};
}

inline std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const OptionalTensor& grad_hy,
                                                             const OptionalTensor& grad_cy, const Tensor& cx,
                                                             const Tensor& cy, const Tensor& workspace, bool has_bias) {
  Composed call("aten::_thnn_fused_lstm_cell_backward_impl", cx);
  auto gates = host_view(workspace).chunk(4, 1);
  auto in = gates[0], forget = gates[1], cell = gates[2], out = gates[3];
  auto squashed = roughly(host_view(cy).tanh());
  auto of_hy = host_view(grad_hy).value_or(at::zeros_like(squashed));
  auto of_cy = at::tanh_backward(of_hy * out, squashed);
  if (auto later = host_view(grad_cy)) of_cy = of_cy + *later;
  auto of_gates = at::cat({at::sigmoid_backward(of_cy * cell, in), at::sigmoid_backward(of_cy * host_view(cx), forget),
                           at::tanh_backward(of_cy * in, cell), at::sigmoid_backward(of_hy * squashed, out)},
                          1);
  auto results = call.results<3>({of_gates, of_cy * forget, has_bias ? of_gates.sum(0) : Tensor()});
  return {results[0], results[1], results[2]};
}

inline std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates, const Tensor& hx,
                                           const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  Composed call("aten::_thnn_fused_gru_cell", input_gates);
  auto of_input = with_bias(call, input_gates, input_bias).chunk(3, 1);
  auto of_hidden = with_bias(call, hidden_gates, hidden_bias).chunk(3, 1);
  auto reset = roughly((of_hidden[0] + of_input[0]).sigmoid_());
  auto update = roughly((of_hidden[1] + of_input[1]).sigmoid_());
  auto fresh = roughly((of_input[2] + of_hidden[2] * reset).tanh_());
  auto hidden = host_view(hx);
  auto hy = (hidden - fresh).mul_(update).add_(fresh);
  auto results = call.results<2>({hy, at::cat({reset, update, fresh, hidden, of_hidden[2]}, 1)});
  return {results[0], results[1]};
}

inline std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad_hy,
                                                                            const Tensor& workspace, bool has_bias) {
  Composed call("aten::_thnn_fused_gru_cell_backward", grad_hy);
  auto saved = host_view(workspace).chunk(5, 1);
  auto reset = saved[0], update = saved[1], fresh = saved[2], hidden = saved[3], candidate = saved[4];
  auto grad = host_view(grad_hy);
  auto of_hx = grad * update;
  auto of_fresh = at::tanh_backward(grad - of_hx, fresh);
  auto of_update = at::sigmoid_backward(grad * (hidden - fresh), update);
  auto of_reset = at::sigmoid_backward(of_fresh * candidate, reset);
  auto of_input = at::cat({of_reset, of_update, of_fresh}, 1);
  auto of_hidden = at::cat({of_reset, of_update, of_fresh * reset}, 1);
  auto results = call.results<5>({of_input, of_hidden, of_hx, has_bias ? of_input.sum(0) : Tensor(),
                                  has_bias ? of_hidden.sum(0) : Tensor()});
  return {results[0], results[1], results[2], results[3], results[4]};
}

} // namespace simx
