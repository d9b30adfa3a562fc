// The table of initializers and their notation in a job file. Pure.
//
// An initializer without settings is given by its name, `he_normal`; other initializers are given
// as `{type: constant, value: 0.5}`.
#pragma once

#include <string>
#include <vector>

#include "common/layers/layer_spec.h"
#include "common/schema/schema.h"

namespace evergrad::config {

struct InitializerDescriptor {
  std::string name;
  bool built = true;
  std::vector<Key<InitializerSpec>> keys = {};  // in addition to `type`
  NotBuilt keys_not_built = {};
  // Returns whether the initializer has a required key, and so cannot be given by its name alone.
  bool needs_mapping() const;
};

// Returns the initializers in the order in which messages and the reference list them.
const std::vector<InitializerDescriptor>& Initializers();

// Returns the text with which the reference lists the values of a key for an initializer.
std::string InitializerType();
// Reads an initializer, which is a name or a mapping. Messages about mistakes contain `key`.
void ReadInitializer(Reader& reader, const Node& node, const std::string& key,
                     InitializerSpec* spec);
Node WriteInitializer(const InitializerSpec& spec);

// Returns a key of T whose value is an initializer.
template <class T>
Key<T> InitializerKey(std::string name, InitializerSpec T::*member, std::string help) {
  return {name,
          InitializerType(),
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) { ReadInitializer(r, n, name, &(t->*member)); },
          [=](const T& t) { return std::optional<Node>(WriteInitializer(t.*member)); }};
}

// Returns a key of T whose value is a regularizer: `kernel_regularizer: {l2: 0.01}`.
template <class T>
Key<T> RegularizerKey(std::string name, double T::*member, std::string help) {
  return {name,
          "mapping {l2: number of at least 0}",
          std::move(help),
          false,
          [=](Reader& r, const Node& n, T* t) {
            static const RealBounds bounds{0, 1e6, false, false};
            struct Regularizer {
              double l2 = 0;
            };
            static const Table<Regularizer> table{
                "a regularizer",
                {Required(RealNumber<Regularizer>("l2", &Regularizer::l2, bounds, ""))},
                {"l1", "type"}};
            Regularizer regularizer;
            table.Read(r, n, &regularizer);
            t->*member = regularizer.l2;
          },
          [=](const T& t) {
            if (t.*member == 0) return std::optional<Node>();
            Node map;
            Append(&map, "l2", MakePlain(FormatReal(t.*member)));
            return std::optional<Node>(std::move(map));
          }};
}

}  // namespace evergrad::config
