// Owning pointers to OpenSSL objects: std::unique_ptr<X509, Freer<X509_free>>. Only .cc files
// include this header; it includes no OpenSSL header.
#pragma once

#include <memory>

namespace evergrad {

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};

}  // namespace evergrad
