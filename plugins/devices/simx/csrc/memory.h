// Memory of the device: host memory with an allocator of its own, which counts per index and has a limit.
#pragma once
#include "lost.h"
#include "options.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <cstdlib>
#include <cstring>

namespace simx {

constexpr c10::DeviceType kSimx = c10::DeviceType::PrivateUse1;
constexpr int kMostDevices = 16;
constexpr size_t kAlignment = 64;

inline thread_local c10::DeviceIndex current_index = 0;

inline void check_index(c10::DeviceIndex index) {
  auto count = options()->devices;
  TORCH_CHECK(index >= 0 && index < count, "simx: invalid device ordinal ", int(index), " (", count, " devices)");
}

// Every number the allocator keeps; the first entry of a StatArray is the aggregate.
struct Statistics {
  std::mutex mutex;
  c10::CachingDeviceAllocator::DeviceStats of[kMostDevices];
};

inline Statistics& statistics() {
  static auto* statistics = new Statistics;
  return *statistics;
}

struct Block {
  void* start;
  size_t bytes;
  c10::DeviceIndex index;
};

inline void count(const Block& block, bool taken) {
  auto& all = statistics();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& of = all.of[block.index];
  for (auto* bytes : {&of.allocated_bytes, &of.reserved_bytes, &of.active_bytes, &of.requested_bytes}) {
    taken ? (*bytes)[0].increase(block.bytes) : (*bytes)[0].decrease(block.bytes);
  }
  for (auto* blocks : {&of.allocation, &of.active}) {
    taken ? (*blocks)[0].increase(1) : (*blocks)[0].decrease(1);
  }
}

inline void release(void* context) {
  auto* block = static_cast<Block*>(context);
  count(*block, false);
  std::free(block->start);
  delete block;
}

inline void refuse_beyond_limit(size_t bytes, c10::DeviceIndex index) {
  auto limit = options()->memory_limit;
  if (limit == 0) return;
  auto& all = statistics();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto used = static_cast<size_t>(all.of[index].allocated_bytes[0].current);
  if (used + bytes <= limit) return;
  all.of[index].num_ooms++;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "simx out of memory. Tried to allocate ", bytes, " bytes on simx:",
                   int(index), ", of whose ", limit, " bytes ", used, " are in use");
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    refuse_if_lost();
    check_index(current_index);
    c10::Device device(kSimx, current_index);
    if (bytes == 0) return {nullptr, device};
    refuse_beyond_limit(bytes, current_index);
    auto* block = new Block{std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment), bytes,
                            current_index};
    count(*block, true);
    return {block->start, block, &release, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    check_index(index);
    if (options()->no_memory_stats) return {};
    std::lock_guard<std::mutex> lock(statistics().mutex);
    return statistics().of[index];
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    each_stat(index, [](c10::CachingAllocator::Stat& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    each_stat(index, [](c10::CachingAllocator::Stat& stat) { stat.reset_peak(); });
  }
  // Not "override": torch 2.9 does not ask.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) {
    constexpr size_t unlimited = size_t(1) << 40;
    auto limit = options()->memory_limit;
    auto total = limit == 0 ? unlimited : limit;
    return {total - getDeviceStats(index).allocated_bytes[0].current, total};
  }

 private:
  template <typename Change>
  void each_stat(c10::DeviceIndex index, Change change) {
    check_index(index);
    std::lock_guard<std::mutex> lock(statistics().mutex);
    auto& of = statistics().of[index];
    for (auto* stats : {&of.allocated_bytes, &of.reserved_bytes, &of.active_bytes, &of.requested_bytes, &of.allocation,
                        &of.active}) {
      change((*stats)[0]);
    }
  }
};

// Never destroyed, like torch's own: tensors may outlive static objects.
inline Allocator& allocator() {
  static auto* allocator = new Allocator;
  return *allocator;
}

} // namespace simx
