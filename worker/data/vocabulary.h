// The ids that the transform `vocabulary` assigns to the values of the training data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace evergrad::worker {

// The ids of the texts that occur at least min_count times in the training data. The most frequent
// text has id 1, and texts of equal count are in the order of their bytes. All other texts have id
// 0.
using Vocabulary = absl::flat_hash_map<std::string, std::int64_t>;

// Counts the words while the file is read, so that training data is read only once. A word first
// gets a number in the order of first appearance. Make assigns the ids. Not thread-safe.
class VocabularyBuilder {
 public:
  // Counts `word` and returns its number; numbers start at 1.
  std::int64_t Count(const std::string& word);
  // Makes the vocabulary of the words with a count of at least `min_count`, and removes the words.
  // ids[number] is set to the id of the word with that number; ids[0] is 0.
  Vocabulary Make(std::uint64_t min_count, std::vector<std::int64_t>* ids);
  // Returns the approximate memory of the words.
  std::uint64_t bytes() const { return bytes_; }

 private:
  absl::flat_hash_map<std::string, std::int64_t> numbers_;  // by word
  std::vector<std::uint64_t> counts_;                       // by number - 1
  std::uint64_t bytes_ = 0;
};

}  // namespace evergrad::worker
