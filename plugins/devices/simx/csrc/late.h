// What is computed on a stream of its own is not there for other streams until that stream is waited for.
//
// The bytes of such results are kept apart, and NaN stands in their place. Work of the same stream has them back first.
#pragma once
#include "memory.h"

#include <c10/core/Stream.h>
#include <c10/core/Storage.h>
#include <cstring>

namespace simx {

struct Written {
  c10::Storage storage;
  std::vector<char> bytes;
};

struct LateWork {
  std::mutex mutex;
  std::map<c10::StreamId, std::map<c10::StorageImpl*, Written>> of_stream;
};

inline LateWork& late_work() {
  static auto* work = new LateWork;
  return *work;
}

// Keep what a stream has written away from all others; stream 0 is the one that everybody reads on.
inline void hide(c10::StreamId stream, const c10::Storage& storage) {
  if (stream == 0 || !options()->late_streams || storage.nbytes() == 0) return;
  auto& work = late_work();
  std::lock_guard<std::mutex> lock(work.mutex);
  auto* memory = static_cast<char*>(storage.mutable_data());
  auto& kept = work.of_stream[stream];
  kept.insert_or_assign(storage.unsafeGetStorageImpl(), Written{storage, {memory, memory + storage.nbytes()}});
  std::memset(memory, 0xff, storage.nbytes());
}

inline void reveal_all(std::map<c10::StorageImpl*, Written>& written) {
  for (auto& [impl, one] : written) {
    auto size = std::min(one.bytes.size(), one.storage.nbytes());
    std::memcpy(one.storage.mutable_data(), one.bytes.data(), size);
  }
  written.clear();
}

// Let everybody see what a stream has written.
inline void reveal(c10::StreamId stream) {
  auto& work = late_work();
  std::lock_guard<std::mutex> lock(work.mutex);
  auto found = work.of_stream.find(stream);
  if (found != work.of_stream.end()) reveal_all(found->second);
}

inline void reveal_every_stream() {
  auto& work = late_work();
  std::lock_guard<std::mutex> lock(work.mutex);
  for (auto& [stream, written] : work.of_stream) reveal_all(written);
}

} // namespace simx
