// What the device is asked to do, and to do wrong. Python checks every value before it gets here (options.py).
#pragma once
#include <ATen/core/Dict.h>
#include <c10/core/ScalarType.h>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace simx {

using Given = c10::Dict<std::string, std::string>;
using Names = std::set<std::string>;

// The number-th run of an operation, or of any operation where the name is empty; number 0 never comes.
struct Moment {
  std::string operation;
  int64_t number = 0;
};

inline std::string text(const Given& given, const char* name) {
  auto found = given.find(name);
  return found == given.end() ? std::string() : found->value();
}

inline int64_t number(const Given& given, const char* name) {
  auto value = text(given, name);
  return value.empty() ? 0 : std::stoll(value);
}

inline bool flag(const Given& given, const char* name) {
  return text(given, name) == "1";
}

// An operation and its in-place form go by one name.
inline std::string without_underscore(const std::string& name) {
  bool in_place = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  return in_place ? name.substr(0, name.size() - 1) : name;
}

inline Names names(const Given& given, const char* name) {
  Names found;
  std::stringstream stream(text(given, name));
  for (std::string part; std::getline(stream, part, ',');) found.insert(without_underscore(part));
  return found;
}

// "aten::mm:transpose" is split at its last colon.
inline std::map<std::string, std::string> pairs(const Given& given, const char* name) {
  std::map<std::string, std::string> found;
  for (const auto& part : names(given, name)) {
    auto colon = part.rfind(':');
    found[without_underscore(part.substr(0, colon))] = part.substr(colon + 1);
  }
  return found;
}

inline Moment moment(const Given& given, const char* name) {
  auto value = text(given, name);
  auto colon = value.rfind(':');
  if (value.empty()) return {};
  if (colon == std::string::npos) return {"", std::stoll(value)};
  return {without_underscore(value.substr(0, colon)), std::stoll(value.substr(colon + 1))};
}

inline std::string dtype_name(c10::ScalarType dtype) {
  static const std::map<c10::ScalarType, std::string> known = {
      {c10::kDouble, "float64"},          {c10::kFloat, "float32"},
      {c10::kHalf, "float16"},            {c10::kBFloat16, "bfloat16"},
      {c10::kComplexFloat, "complex64"},  {c10::kComplexDouble, "complex128"},
      {c10::kLong, "int64"},              {c10::kInt, "int32"},
      {c10::kShort, "int16"},             {c10::kChar, "int8"},
      {c10::kByte, "uint8"},              {c10::kBool, "bool"},
  };
  auto found = known.find(dtype);
  return found == known.end() ? c10::toString(dtype) : found->second;
}

struct Options {
  Options() = default;
  explicit Options(const Given& given)
      : devices(number(given, "devices")),
        memory_limit(number(given, "memory_limit")),
        no_memory_stats(flag(given, "no_memory_stats")),
        no_dtypes(names(given, "no_dtypes")),
        narrow_float64(flag(given, "narrow_float64")),
        no_ops(names(given, "no_ops")),
        cpu_result(names(given, "cpu_result")),
        cpu_fallback(names(given, "cpu_fallback")),
        tf32(flag(given, "tf32")),
        tf32_by_torch(text(given, "tf32") == "torch"),
        rough(pairs(given, "rough")),
        rough_cells(number(given, "rough_cells")),
        atomics(flag(given, "atomics")),
        own_random(flag(given, "own_random")),
        bfloat16_accumulate(flag(given, "bfloat16_accumulate")),
        flush_denormals(flag(given, "flush_denormals")),
        nondeterministic(flag(given, "nondeterministic")),
        wrong(pairs(given, "wrong")),
        wrong_above(number(given, "wrong_above")),
        copying_views(flag(given, "copying_views")),
        mix_with_cpu(flag(given, "mix_with_cpu")),
        one_index(flag(given, "one_index")),
        late_streams(flag(given, "late_streams")),
        unseeded(flag(given, "unseeded")),
        slow(pairs(given, "slow")),
        lost_at(moment(given, "lost_at")),
        hang_at(moment(given, "hang_at")),
        abort_at(moment(given, "abort_at")),
        segfault_at(moment(given, "segfault_at")),
        abort_at_exit(flag(given, "abort_at_exit")) {}

  int64_t devices = 2;
  size_t memory_limit = 0;
  bool no_memory_stats = false;
  Names no_dtypes;
  bool narrow_float64 = false;
  Names no_ops, cpu_result, cpu_fallback;
  bool tf32 = false, tf32_by_torch = false;
  std::map<std::string, std::string> rough;
  int64_t rough_cells = 0;
  bool atomics = false, own_random = false;
  bool bfloat16_accumulate = false, flush_denormals = false, nondeterministic = false;
  std::map<std::string, std::string> wrong;
  int64_t wrong_above = 0;
  bool copying_views = false, mix_with_cpu = false, one_index = false, late_streams = false, unseeded = false;
  std::map<std::string, std::string> slow;
  Moment lost_at, hang_at, abort_at, segfault_at;
  bool abort_at_exit = false;
};

// Autograd's threads read while a test writes, so what was read is kept alive by the reader. Never destroyed: threads
// of autograd may outlive static objects.
inline std::mutex& options_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

inline std::shared_ptr<const Options>& options_slot() {
  static auto* slot = new std::shared_ptr<const Options>(std::make_shared<const Options>());
  return *slot;
}

inline std::shared_ptr<const Options> options() {
  std::lock_guard<std::mutex> lock(options_mutex());
  return options_slot();
}

} // namespace simx
