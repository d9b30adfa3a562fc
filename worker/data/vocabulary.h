// The ids that the transform `vocabulary` gives to the values of the training data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace evergrad::worker {

// Ids from 1 on, by descending count in the training data and then by text. A text that is not in
// it has id 0: it occurs less than min_count times, or not at all.
using Vocabulary = absl::flat_hash_map<std::string, std::int64_t>;

// Counts the words while the file is read, so that training data is read only once: a word gets a
// number in order of appearance, and an id at the end. Not thread-safe.
class VocabularyBuilder {
 public:
  // Counts `word` and returns its number, from 1 on.
  std::int64_t Count(const std::string& word);
  // Makes the vocabulary of the words that were counted `min_count` times or more and forgets the
  // words. `ids` receives the id of each number; ids[0] is 0.
  Vocabulary Make(std::uint64_t min_count, std::vector<std::int64_t>* ids);
  // Memory of the words, approximately.
  std::uint64_t bytes() const { return bytes_; }

 private:
  absl::flat_hash_map<std::string, std::int64_t> numbers_;  // by word
  std::vector<std::uint64_t> counts_;                       // by number - 1
  std::uint64_t bytes_ = 0;
};

}  // namespace evergrad::worker
