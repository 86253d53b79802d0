// What the device does wrong when asked to: before an operation, to its operands, and to its result.
#pragma once
#include "host.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <csignal>
#include <span>
#include <thread>

namespace simx {

// What has run since the options were set, and what a faulty device remembers.
struct History {
  std::mutex mutex;
  int64_t runs = 0;
  std::map<std::string, int64_t> runs_of;
  std::map<std::string, at::Tensor> last_results;
};

inline History& history() {
  static auto* history = new History;
  return *history;
}

inline void set_options(const Given& given) {
  {
    std::lock_guard<std::mutex> lock(options_mutex());
    options_slot() = std::make_shared<const Options>(given);
  }
  auto& past = history();
  std::lock_guard<std::mutex> lock(past.mutex);
  past.runs = 0;
  past.runs_of.clear();
  past.last_results.clear();
  lost = false;
}

// What has come with one run.
struct Due {
  bool lost, hang, abort, segfault;
};

inline Due count_run(const std::string& name, const Options& wanted) {
  auto& past = history();
  std::lock_guard<std::mutex> lock(past.mutex);
  auto any = ++past.runs;
  auto of_this = ++past.runs_of[name];
  auto due = [&](const Moment& moment) {
    return moment.operation.empty() ? moment.number == any
                                    : moment.operation == name && moment.number == of_this;
  };
  Due found{due(wanted.lost_at), due(wanted.hang_at), due(wanted.abort_at), due(wanted.segfault_at)};
  if (found.lost) lost = true;
  return found;
}

inline void before(const std::string& name) {
  auto wanted = options();
  TORCH_CHECK_NOT_IMPLEMENTED(!wanted->no_ops.count(name), "Could not run '", name,
                              "' with arguments from the 'simx' backend.");
  auto due = count_run(name, *wanted);
  refuse_if_lost();
  if (wanted->late_streams) reveal(stream_here());
  if (due.abort) std::abort();
  if (due.segfault) std::raise(SIGSEGV);
  while (due.hang) std::this_thread::sleep_for(std::chrono::seconds(1));
  auto slow = wanted->slow.find(name);
  if (slow != wanted->slow.end()) std::this_thread::sleep_for(std::chrono::milliseconds(std::stoll(slow->second)));
}

// ---- operands and results of matrix products and sums

// Whether factors of products are rounded to TF32 now: always, or as torch's switch for CUDA's products says.
inline bool tf32_in_products() {
  auto wanted = options();
  return wanted->tf32 || (wanted->tf32_by_torch && at::globalContext().allowTF32CuBLAS());
}

// The same of what cuDNN computes on CUDA, convolutions and recurrent cells, which has a switch of its own.
inline bool tf32_in_cudnn() {
  auto wanted = options();
  return wanted->tf32 || (wanted->tf32_by_torch && at::globalContext().allowTF32CuDNN());
}

// Return a copy with the ten bits of mantissa that TF32 has, rounded to nearest, ties to even.
inline at::Tensor rounded_to_tf32(const at::Tensor& tensor) {
  if (tensor.scalar_type() != c10::kFloat) return tensor;
  auto rounded = tensor.clone(at::MemoryFormat::Contiguous);
  auto* bits = static_cast<uint32_t*>(rounded.data_ptr());
  for (int64_t i = 0; i < rounded.numel(); i++) {
    bool finite = (bits[i] & 0x7f800000u) != 0x7f800000u;
    if (finite) bits[i] = (bits[i] + 0xfffu + ((bits[i] >> 13) & 1u)) & ~0x1fffu;
  }
  return rounded;
}

// Return the numbers 0 to size - 1 in an order that no seed decides.
inline at::Tensor any_order(int64_t size) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::random_device()());
  return at::randperm(size, generator, at::TensorOptions(at::kLong));
}

// Where an operation keeps the two factors of a product; -1 for one that is no product.
inline int first_factor(const std::string& name) {
  static const std::map<std::string, int> known = {{"aten::mm", 0},  {"aten::bmm", 0},   {"aten::mv", 0},
                                                   {"aten::dot", 0}, {"aten::addmm", 1}, {"aten::baddbmm", 1},
                                                   {"aten::addmv", 1}};
  auto found = known.find(name);
  return found == known.end() ? -1 : found->second;
}

inline std::vector<int64_t> summed_dims(const c10::IValue& dims, int64_t count) {
  std::vector<int64_t> found;
  if (!dims.isNone()) found = dims.toIntVector();
  if (found.empty()) {
    for (int64_t dim = 0; dim < count; dim++) found.push_back(dim);
  }
  for (auto& dim : found) dim = at::maybe_wrap_dim(dim, count);
  return found;
}

// Let what several threads add to one element, on a GPU by atomics, come in an order that no seed decides.
inline void disturb_atomics(const std::string& name, std::span<c10::IValue> arguments) {
  if (name == "aten::index_add" || name == "aten::scatter_add") {
    auto index = arguments[2].toTensor(), source = arguments[3].toTensor();
    if (index.dim() == 0 || source.dim() == 0 || index.numel() == 0) return;
    auto dim = at::maybe_wrap_dim(arguments[1].toInt(), source.dim());
    auto along = name == "aten::index_add" ? 0 : dim;
    if (name == "aten::scatter_add") { // the source may be larger than the index
      for (int64_t i = 0; i < index.dim(); i++) source = source.narrow(i, 0, index.size(i));
    }
    auto order = any_order(index.size(along));
    arguments[2] = index.index_select(along, order), arguments[3] = source.index_select(dim, order);
  } else if (name == "aten::embedding_dense_backward") {
    auto grad = arguments[0].toTensor(), indices = arguments[1].toTensor();
    if (indices.numel() == 0) return;
    auto order = any_order(indices.numel());
    arguments[0] = grad.reshape({indices.numel(), grad.size(-1)}).index_select(0, order);
    arguments[1] = indices.reshape(-1).index_select(0, order);
  }
}

inline void disturb_operands(const std::string& name, std::span<c10::IValue> arguments) {
  auto wanted = options();
  if (wanted->atomics) disturb_atomics(name, arguments);
  auto tf32 = tf32_in_products();
  if (!tf32 && !wanted->nondeterministic) return;
  auto first = first_factor(name);
  if (first >= 0) {
    auto a = arguments[first].toTensor(), b = arguments[first + 1].toTensor();
    if (tf32) a = rounded_to_tf32(a), b = rounded_to_tf32(b);
    if (wanted->nondeterministic) {
      auto order = any_order(a.size(-1));
      a = a.index_select(-1, order), b = b.index_select(b.dim() == 1 ? 0 : -2, order);
    }
    arguments[first] = a, arguments[first + 1] = b;
  } else if (name == "aten::sum" && wanted->nondeterministic) {
    auto self = arguments[0].toTensor();
    for (auto dim : summed_dims(arguments[1], self.dim())) self = self.index_select(dim, any_order(self.size(dim)));
    arguments[0] = self;
  }
}

// Return a @ b with every partial sum rounded to bfloat16.
inline at::Tensor product_in_bfloat16(const at::Tensor& a, const at::Tensor& b) {
  auto total = at::zeros_like(at::matmul(a, b));
  for (int64_t k = 0; k < a.size(-1); k++) {
    total = total + a.narrow(-1, k, 1) * b.narrow(-2, k, 1);
  }
  return total;
}

inline at::Tensor sum_in_bfloat16(at::Tensor self, const c10::IValue& dims, bool keepdim) {
  auto wanted = summed_dims(dims, self.dim());
  for (auto dim : wanted) {
    auto total = at::zeros_like(self.narrow(dim, 0, 1));
    for (int64_t i = 0; i < self.size(dim); i++) total = total + self.narrow(dim, i, 1);
    self = total;
  }
  std::sort(wanted.rbegin(), wanted.rend());
  for (auto dim : wanted) {
    if (!keepdim) self = self.squeeze(dim);
  }
  return self;
}

// Return the result with partial sums in bfloat16, or an undefined tensor where that is not asked for.
inline at::Tensor accumulated_in_bfloat16(const std::string& name, std::span<c10::IValue> arguments) {
  auto is = [&](size_t at) { return arguments[at].toTensor().scalar_type() == c10::kBFloat16; };
  if (!options()->bfloat16_accumulate) return {};
  if ((name == "aten::mm" || name == "aten::bmm") && is(0)) {
    return product_in_bfloat16(arguments[0].toTensor(), arguments[1].toTensor());
  }
  if ((name == "aten::addmm" || name == "aten::baddbmm") && is(1)) {
    auto product = product_in_bfloat16(arguments[1].toTensor(), arguments[2].toTensor());
    return arguments[0].toTensor() * arguments[3].toScalar() + product * arguments[4].toScalar();
  }
  if (name == "aten::sum" && is(0) && arguments[0].toTensor().numel() > 0) {
    return sum_in_bfloat16(arguments[0].toTensor(), arguments[1], arguments[2].toBool());
  }
  return {};
}

// ---- results of any operation

inline at::Tensor exchanged_with_last(const std::string& name, const at::Tensor& result) {
  std::stringstream key;
  key << name << result.sizes() << result.scalar_type();
  std::lock_guard<std::mutex> lock(history().mutex);
  auto& slot = history().last_results[key.str()];
  auto stale = slot.defined() ? slot : result;
  slot = result.clone();
  return stale.clone();
}

inline at::Tensor wrongly(const std::string& name, const std::string& way, const at::Tensor& result) {
  if (way == "stale") return exchanged_with_last(name, result);
  if (way == "transpose" && result.dim() > 1) {
    return result.transpose(-2, -1).clone(at::MemoryFormat::Contiguous).view(result.sizes());
  }
  return way == "index" ? result.reshape(-1).roll(1).view(result.sizes()) : result.clone();
}

inline void flush_denormals(const at::Tensor& result) {
  if (!c10::isFloatingType(result.scalar_type())) return;
  double tiny = 0x1p-1022;
  if (result.scalar_type() == c10::kFloat || result.scalar_type() == c10::kBFloat16) tiny = 0x1p-126;
  if (result.scalar_type() == c10::kHalf) tiny = 0x1p-14;
  result.masked_fill_(result.abs().lt(tiny), 0);
}

// Make the first result of an operation (on the host) wrong where the options say so.
inline void make_wrong(const std::string& name, const std::vector<at::Tensor>& results) {
  auto wanted = options();
  auto way = wanted->wrong.find(name);
  if (way == wanted->wrong.end()) return;
  for (const auto& result : results) {
    if (!result.defined() || result.numel() == 0) continue;
    if (result.numel() <= wanted->wrong_above) return;
    result.copy_(wrongly(name, way->second, result));
    return;
  }
}

// Return float32 values that are each off by up to so many eps.
inline at::Tensor off_by(const at::Tensor& values, int64_t eps) {
  if (eps == 0 || values.scalar_type() != c10::kFloat) return values;
  return values * (1 + (values * 997).cos_() * (static_cast<double>(eps) * 0x1p-23));
}

inline void make_rough(const std::string& name, const std::vector<at::Tensor>& results) {
  auto wanted = options();
  auto eps = wanted->rough.find(name);
  if (eps == wanted->rough.end()) return;
  for (const auto& result : results) {
    if (result.defined() && result.scalar_type() == c10::kFloat) result.copy_(off_by(result, std::stoll(eps->second)));
  }
}

// Spoil what an operation has computed, as the options say.
inline void spoil(const std::string& name, const std::vector<at::Tensor>& results) {
  for (const auto& result : results) {
    if (options()->flush_denormals && result.defined()) flush_denormals(result);
  }
  make_rough(name, results);
  make_wrong(name, results);
}

} // namespace simx
