#include "worker/data/vocabulary.h"

#include <algorithm>
#include <utility>

#include "absl/strings/string_view.h"

namespace evergrad::worker {
namespace {

constexpr std::uint64_t kBytesPerWord = 64;  // in addition to its text

}  // namespace

std::int64_t VocabularyBuilder::Count(const std::string& word) {
  const auto [entry, fresh] =
      numbers_.try_emplace(word, static_cast<std::int64_t>(counts_.size()) + 1);
  if (fresh) {
    counts_.push_back(0);
    bytes_ += word.size() + kBytesPerWord;
  }
  ++counts_[static_cast<std::size_t>(entry->second - 1)];
  return entry->second;
}

Vocabulary VocabularyBuilder::Make(std::uint64_t min_count, std::vector<std::int64_t>* ids) {
  std::vector<std::pair<std::uint64_t, absl::string_view>> order;
  for (const auto& [word, number] : numbers_) {
    const std::uint64_t count = counts_[static_cast<std::size_t>(number - 1)];
    if (count >= min_count) order.emplace_back(count, word);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  ids->assign(counts_.size() + 1, 0);
  Vocabulary vocabulary;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto id = static_cast<std::int64_t>(i) + 1;
    (*ids)[static_cast<std::size_t>(numbers_.find(order[i].second)->second)] = id;
    vocabulary[std::string(order[i].second)] = id;
  }
  numbers_ = {};
  return vocabulary;
}

}  // namespace evergrad::worker
