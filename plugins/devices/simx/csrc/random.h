// Random numbers: the CPU's generator, one per index. And the hooks through which torch asks for all of the device.
#pragma once
#include "device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <random>

namespace simx {

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(c10::DeviceIndex index) : at::CPUGeneratorImpl(c10::default_rng_seed_val) {
    device_ = c10::Device(kSimx, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }

  // An algorithm of its own gives other numbers than the CPU for one seed; another seed of the CPU's does as well.
  void set_current_seed(uint64_t seed) override {
    at::CPUGeneratorImpl::set_current_seed(options()->own_random ? seed ^ kOwn : seed);
  }
  uint64_t current_seed() const override {
    auto seed = at::CPUGeneratorImpl::current_seed();
    return options()->own_random ? seed ^ kOwn : seed;
  }

 private:
  static constexpr uint64_t kOwn = 0x5bd1e995;
  Generator* clone_impl() const override {
    auto* copy = new Generator(device_.index());
    copy->set_state(*get_state());
    return copy;
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return options()->devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(options()->devices); }
  c10::DeviceIndex getCurrentDevice() const override { return current_index; }
  void setCurrentDevice(c10::DeviceIndex index) const override {
    check_index(index);
    current_index = index;
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    auto before = current_index;
    setCurrentDevice(index);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? current_index : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index = -1) const override {
    static auto* generators = [] {
      auto* made = new std::vector<at::Generator>;
      for (int i = 0; i < kMostDevices; i++) made->push_back(at::make_generator<Generator>(i));
      return made;
    }();
    auto wanted = index < 0 ? current_index : index;
    check_index(wanted);
    return (*generators)[wanted];
  }
  at::Generator getNewGenerator(c10::DeviceIndex index = -1) const override {
    return at::make_generator<Generator>(index < 0 ? current_index : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    auto data = allocator().allocate(bytes);
    if (auto kept = std::min(bytes, storage.nbytes())) std::memcpy(data.mutable_get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

inline Hooks& hooks() {
  static auto* hooks = new Hooks;
  return *hooks;
}

// A CPU generator that stands in for one of the device while a CPU kernel draws, and hands its state back.
class BorrowedState {
 public:
  explicit BorrowedState(at::Generator owner) : owner_(std::move(owner)) {
    borrowed_ = at::make_generator<at::CPUGeneratorImpl>(0);
    if (options()->unseeded) {
      borrowed_.set_current_seed(std::random_device()());
    } else {
      borrowed_.set_state(owner_.get_state());
    }
  }
  const at::Generator& generator() const { return borrowed_; }
  void keep(const at::Tensor& state) { borrowed_.set_state(state); }
  void give_back() { owner_.set_state(borrowed_.get_state()); }

 private:
  at::Generator owner_, borrowed_;
};

} // namespace simx
