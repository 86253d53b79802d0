// Every operation that has no kernel of its own: the CPU's kernel on the same bytes.
#pragma once
#include "faults.h"

#include <ATen/native/CPUFallback.h>
#include <torch/library.h>
#include <unordered_map>

namespace simx {

// One call: its arguments are turned into the host's, and what came out is turned back.
class Call {
 public:
  Call(const c10::OperatorHandle& operation, torch::jit::Stack* stack)
      : operation_(operation),
        schema_(operation.schema()),
        name_(without_underscore(schema_.name())),
        stack_(stack),
        count_(schema_.arguments().size()) {}

  void run() {
    HostSection section;
    take_arguments();
    refuse_mixture();
    compute();
    auto results = result_tensors();
    spoil(name_, results);
    if (computes_for_device()) give_results();
    if (options()->late_streams && computes_for_device()) hide_results();
  }

 private:
  bool computes_for_device() const { return index_ >= 0; }
  c10::IValue* arguments() { return stack_->data() + stack_->size() - count_; }
  std::span<c10::IValue> operands() { return {arguments(), count_}; }
  c10::IValue* results() { return stack_->data() + stack_->size() - schema_.returns().size(); }

  void take_arguments() {
    for (size_t i = 0; i < count_; i++) take(arguments()[i], schema_.arguments()[i].name());
  }

  void take(c10::IValue& value, const std::string& argument) {
    if (value.isTensor()) {
      value = host(value.toTensor(), argument);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> taken;
      for (const at::Tensor& tensor : value.toTensorVector()) taken.push_back(host(tensor, argument));
      value = taken;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> taken;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        taken.push_back(tensor ? std::optional<at::Tensor>(host(*tensor, argument)) : std::nullopt);
      }
      value = taken;
    } else if (value.isDevice() && value.toDevice().type() == kSimx) {
      auto device = value.toDevice();
      index_ = placed(device.has_index() ? device.index() : current_index);
      value = c10::Device(c10::kCPU);
    } else if (argument == "pin_memory") {
      value = c10::IValue();
    }
  }

  at::Tensor host(const at::Tensor& tensor, const std::string& argument) {
    // As on other accelerators, these may stay on the CPU.
    static const Names may_stay = {"indices", "lengths", "batch_sizes"};
    if (!tensor.defined()) return tensor;
    if (!on_simx(tensor)) {
      if (tensor.dim() > 0 && !may_stay.count(argument)) foreign_ = true;
      return tensor;
    }
    auto index = tensor.device().index();
    TORCH_CHECK(index_ < 0 || index_ == index, "Expected all tensors to be on the same device, but found at least two ",
                "devices, simx:", int(index_), " and simx:", int(index), "! (", name_, ")");
    index_ = index;
    own_ = true;
    auto view = host_view(tensor);
    devices_[view.unsafeGetTensorImpl()] = tensor;
    storages_[view.storage().unsafeGetStorageImpl()] = tensor.storage();
    views_.push_back(view);
    return view;
  }

  void refuse_mixture() const {
    TORCH_CHECK(!(foreign_ && own_) || options()->mix_with_cpu, "Expected all tensors to be on the same device, but ",
                "found at least two devices, simx:", int(index_), " and cpu! (", name_, ")");
  }

  void compute() {
    auto result = accumulated_in_bfloat16(name_, operands());
    if (result.defined()) return put(result);
    disturb_operands(name_, operands());
    int generator = generator_argument();
    if (generator >= 0 && computes_for_device()) return compute_with(arguments()[generator]);
    if (operation_.hasTag(at::Tag::nondeterministic_seeded) && computes_for_device()) return compute_with_default();
    operation_.callBoxed(stack_);
  }

  // Leave the result where the kernel would have: in the argument that is written to, where there is one.
  void put(const at::Tensor& result) {
    auto out = result;
    for (size_t i : {size_t(0), count_ - 1}) {
      const auto* alias = schema_.arguments()[i].alias_info();
      if (alias && alias->isWrite()) out = arguments()[i].toTensor().resize_(result.sizes()).copy_(result);
    }
    torch::jit::drop(*stack_, count_);
    torch::jit::push(*stack_, out);
  }

  int generator_argument() const {
    for (size_t i = 0; i < count_; i++) {
      if (schema_.arguments()[i].name() == "generator") return static_cast<int>(i);
    }
    return -1;
  }

  void compute_with(c10::IValue& argument) {
    auto owner = argument.isNone() ? hooks().getDefaultGenerator(index_) : argument.toGenerator();
    TORCH_CHECK(owner.device().type() == kSimx, "Expected a 'simx' device type for generator but found '",
                owner.device(), "'");
    BorrowedState state(owner);
    argument = state.generator();
    operation_.callBoxed(stack_);
    state.give_back();
  }

  // Such a kernel draws from the CPU's default generator, which therefore has the device's state meanwhile.
  void compute_with_default() {
    BorrowedState state(hooks().getDefaultGenerator(index_));
    auto shared = at::detail::getDefaultCPUGenerator();
    auto before = shared.get_state();
    shared.set_state(state.generator().get_state());
    operation_.callBoxed(stack_);
    state.keep(shared.get_state());
    shared.set_state(before);
    state.give_back();
  }

  std::vector<at::Tensor> result_tensors() {
    std::vector<at::Tensor> found;
    for (size_t i = 0; i < schema_.returns().size(); i++) {
      const auto& value = results()[i];
      if (value.isTensor()) found.push_back(value.toTensor());
      if (value.isTensorList()) {
        for (const at::Tensor& tensor : value.toTensorVector()) found.push_back(tensor);
      }
    }
    return found;
  }

  void give_results() {
    for (size_t i = 0; i < schema_.returns().size(); i++) {
      auto& value = results()[i];
      if (value.isTensor()) {
        value = device(value.toTensor());
      } else if (value.isTensorList()) {
        std::vector<at::Tensor> given;
        for (const at::Tensor& tensor : value.toTensorVector()) given.push_back(device(tensor));
        value = given;
      }
    }
  }

  void hide_results() {
    for (const auto& tensor : result_tensors()) {
      if (on_simx(tensor)) hide(stream_here(), tensor.storage());
    }
  }

  // An argument comes back as itself, a view of one as a view, all else as a new tensor.
  at::Tensor device(const at::Tensor& host) {
    if (!host.defined()) return host;
    auto argument = devices_.find(host.unsafeGetTensorImpl());
    if (argument != devices_.end()) return written(argument->second, host);
    auto storage = host.has_storage() ? storages_.find(host.storage().unsafeGetStorageImpl()) : storages_.end();
    if (storage == storages_.end()) return options()->cpu_result.count(name_) ? host : on_device(host, index_);
    auto view = at::detail::make_tensor<c10::TensorImpl>(
        c10::Storage(storage->second), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), host.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    return view;
  }

  // A kernel that gave its argument another size did so on memory of its own, of which it may have left gaps.
  at::Tensor written(const at::Tensor& argument, const at::Tensor& host) {
    if (argument.sizes().equals(host.sizes()) && host.storage().data() == argument.storage().data()) return argument;
    argument.resize_(static_cast<int64_t>(at::detail::computeStorageNbytes(host.sizes(), host.strides(), 1)));
    argument.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides());
    host_view(argument).copy_(host);
    return argument;
  }

  const c10::OperatorHandle& operation_;
  const c10::FunctionSchema& schema_;
  std::string name_;
  torch::jit::Stack* stack_;
  size_t count_;
  c10::DeviceIndex index_ = -1;
  bool own_ = false, foreign_ = false;
  std::vector<at::Tensor> views_; // alive until the end: they are known by their addresses
  std::unordered_map<c10::TensorImpl*, at::Tensor> devices_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
};

inline void fallback(const c10::OperatorHandle& operation, c10::DispatchKeySet, torch::jit::Stack* stack) {
  auto name = without_underscore(operation.schema().name());
  before(name);
  if (options()->cpu_fallback.count(name)) return at::native::cpu_fallback(operation, stack);
  Call(operation, stack).run();
}

} // namespace simx
