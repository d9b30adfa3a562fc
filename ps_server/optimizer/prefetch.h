// Prefetches rows of tables.
#pragma once

#include <cstddef>
#include <cstdint>

namespace evergrad::ps_server {

// Prefetches a row into the second-level cache. A prefetch into the first-level cache would occupy
// one of its few line fill buffers until the row has arrived. kWrite is 1 for a row that will be
// written.
template <int kWrite>
void PrefetchRow(const float* row, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(row);
  for (std::uintptr_t at = begin & ~std::uintptr_t{63}; at < begin + bytes; at += 64)
    __builtin_prefetch(reinterpret_cast<const void*>(at), kWrite, 2);
}

}  // namespace evergrad::ps_server
