// A device that is lost refuses everything from then on, until the options are set anew.
#pragma once
#include <c10/util/Exception.h>
#include <atomic>

namespace simx {

inline std::atomic<bool> lost{false};

inline void refuse_if_lost() {
  constexpr int launch_failure = 719; // the number CUDA has for an error after which a process gets nothing more done
  if (lost) throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, launch_failure, "simx error: device lost");
}

} // namespace simx
