#include "tests/mutants/mutant.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace evergrad::mutants {
namespace {

Mutant OfEnvironment() {
  const char* const name = std::getenv("EVERGRAD_MUTANT");
  if (name == nullptr) return Mutant::kNone;
  const MutantInfo* const found = FindMutant(name);
  if (found != nullptr) return found->mutant;
  std::fprintf(stderr, "EVERGRAD_MUTANT names no mutant: %s\n", name);
  std::_Exit(2);
}

const Mutant of_process = OfEnvironment();
thread_local Mutant active = of_process;

}  // namespace

bool IsActive(Mutant mutant) { return active == mutant; }

Activated::Activated(Mutant mutant) : former_(std::exchange(active, mutant)) {}
Activated::~Activated() { active = former_; }

const std::vector<MutantInfo>& AllMutants() {
  static const auto& all = *new std::vector<MutantInfo>{
#define EG_MUTANT(id, name, line, error) {Mutant::id, name, line, error},
#include "tests/mutants/mutants.inc"
#undef EG_MUTANT
  };
  return all;
}

const MutantInfo* FindMutant(const std::string& name) {
  for (const MutantInfo& info : AllMutants()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

}  // namespace evergrad::mutants
