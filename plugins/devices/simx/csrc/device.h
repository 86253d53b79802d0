// Indices, streams and events. The device is synchronous: a stream is a number, an event a point in time on one.
#pragma once
#include "late.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <atomic>
#include <chrono>

namespace simx {

inline thread_local c10::StreamId current_streams[kMostDevices] = {};
inline std::atomic<c10::StreamId> next_stream{1};

inline double now_in_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Event {
  double time;
  c10::StreamId stream;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kSimx; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kSimx, current_index}; }
  void setDevice(c10::Device device) const override {
    if (!device.has_index()) return;
    check_index(device.index());
    current_index = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < deviceCount()) current_index = device.index();
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(options()->devices);
  }
#if __has_include(<c10/core/DeviceCapability.h>) // torch 2.9 asks no device which dtypes it has
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    auto& bits = capability.capability_data.capability_bits;
    auto all = bits;
    int index = 0;
    c10::DeviceCapability().forEachSupportedScalarType([&](c10::ScalarType dtype) {
      if (options()->no_dtypes.count(dtype_name(dtype))) all &= ~(uint64_t(1) << index);
      index++;
    });
    bits = all;
    return capability;
  }
#endif

  c10::Stream getStream(c10::Device device) const override {
    auto index = with_index(device).index();
    return stream(current_streams[index], index);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(0, with_index(device).index()); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return stream(next_stream++, with_index(device).index());
  }
  c10::Stream exchangeStream(c10::Stream wanted) const override {
    auto before = getStream(wanted.device());
    current_streams[with_index(wanted.device()).index()] = wanted.id();
    return before;
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    refuse_if_lost();
    reveal(stream.id());
  }
  void synchronizeDevice(c10::DeviceIndex) const override {
    refuse_if_lost();
    reveal_every_stream();
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = {now_in_ms(), stream.id()};
  }
  void block(void* event, const c10::Stream&) const override {
    if (event != nullptr) reveal(static_cast<Event*>(event)->stream);
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void* event) const override { block(event, getStream(getDevice())); }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    return static_cast<Event*>(end)->time - static_cast<Event*>(start)->time;
  }

 private:
  static c10::Device with_index(c10::Device device) {
    return {kSimx, device.has_index() ? device.index() : current_index};
  }
  static c10::Stream stream(c10::StreamId id, c10::DeviceIndex index) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kSimx, index), id);
  }
};

// The stream on which this thread works on the current index.
inline c10::StreamId stream_here() {
  return current_streams[current_index];
}

} // namespace simx
