#include "common/config/places.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/schema/scalar.h"
#include "common/schema/schema.h"

namespace evergrad::config {
namespace {

constexpr char kExplanation[] =
    "# Messages name the following places in the user's file: [file, line, column].\n";
// The reader looks for kHead only, because earlier versions wrote another explanation in front of
// it.
constexpr char kHead[] = "# places: ";
constexpr std::size_t kFilesMax = 64, kFileNameBytesMax = 1024;
constexpr std::uint64_t kNumberMax = 1u << 30;

// Returns the places of a spec by section, in order.
std::vector<std::pair<const char*, std::vector<Location*>>> PlacesOf(JobSpec* spec) {
  const auto all = [](auto* parts) {
    std::vector<Location*> places;
    for (auto& part : *parts) places.push_back(&part.where);
    return places;
  };
  const auto one = [](std::optional<SourceSpec>* source) {
    return source->has_value() ? std::vector<Location*>{&(*source)->where}
                               : std::vector<Location*>();
  };
  const std::vector<Location*> optimizers(spec->optimizers.empty() ? 0 : 1,
                                          &spec->optimizers_where);
  return {{"train", one(&spec->data.train)},
          {"eval", one(&spec->data.eval)},
          {"inputs", all(&spec->model.inputs)},
          {"tables", all(&spec->model.tables)},
          {"layers", all(&spec->model.layers)},
          {"losses", all(&spec->model.losses)},
          {"optimizers", optimizers}};
}

std::optional<Location> PlaceOf(const Node& node, const std::vector<std::string>& files) {
  if (node.items.size() != 3) return std::nullopt;
  std::uint64_t numbers[3];
  for (std::size_t i = 0; i < 3; ++i) {
    const auto number = ParseUnsigned(node.items[i].text, i == 0 ? 0 : 1, kNumberMax);
    if (!number.ok()) return std::nullopt;
    numbers[i] = *number;
  }
  if (numbers[0] >= files.size()) return std::nullopt;
  return Location{files[numbers[0]], static_cast<int>(numbers[1]), static_cast<int>(numbers[2])};
}

}  // namespace

std::string PrintPlaces(const JobSpec& spec) {
  JobSpec copy = spec;
  std::map<std::string, std::size_t> numbers;
  std::vector<Node> files;
  Node map;
  Append(&map, "files", Node());
  for (const auto& [section, places] : PlacesOf(&copy)) {
    std::vector<Node> items;
    for (const Location* place : places) {
      if (place->line < 1 || place->file.empty() || place->file.size() > kFileNameBytesMax)
        return "";
      const auto [known, fresh] = numbers.emplace(place->file, files.size());
      if (fresh) files.push_back(MakeText(place->file));
      items.push_back(
          MakeList({MakePlain(absl::StrCat(known->second)), MakePlain(absl::StrCat(place->line)),
                    MakePlain(absl::StrCat(std::max(place->column, 1)))}));
    }
    if (!items.empty()) Append(&map, section, MakeList(std::move(items)));
  }
  if (files.empty() || files.size() > kFilesMax) return "";
  map.entries[0].value = MakeList(std::move(files));
  return absl::StrCat(kExplanation, kHead, PrintFlow(map), "\n");
}

void ReadPlaces(absl::string_view yaml, JobSpec* spec) {
  const std::size_t at = yaml.rfind(kHead);
  if (at == absl::string_view::npos || (at > 0 && yaml[at - 1] != '\n')) return;
  absl::string_view line = yaml.substr(at + sizeof(kHead) - 1);
  if (!absl::EndsWith(line, "\n") || line.find('\n') != line.size() - 1) return;  // not at the end
  std::vector<Mistake> ignored;
  const auto root = ReadYamlTree(line, {"places"}, &ignored);
  if (!root || !ignored.empty() || root->Find("files") == nullptr) return;
  std::vector<std::string> files;
  for (const Node& file : root->Find("files")->items)
    files.push_back(file.text.substr(0, kFileNameBytesMax));
  if (files.size() > kFilesMax) return;
  for (const auto& [section, places] : PlacesOf(spec)) {
    const Node* const items = root->Find(section);
    if (items == nullptr || items->items.size() != places.size()) continue;
    for (std::size_t i = 0; i < places.size(); ++i)
      if (const auto place = PlaceOf(items->items[i], files)) *places[i] = *place;
  }
}

}  // namespace evergrad::config
