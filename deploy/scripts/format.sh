#!/usr/bin/env bash
# Formats the project's own sources at 100 columns: clang-format for C++, CUDA and protocol
# definitions, black for Python. --check changes nothing and fails when something would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
clang=(-i) black=(--quiet)
[[ ${1:-} == --check ]] && clang=(--dry-run --Werror) black=(--quiet --check)
git ls-files '*.cc' '*.h' '*.inc' '*.cu' '*.cuh' '*.proto' |
  xargs -r -n 40 clang-format-14 "${clang[@]}"
git ls-files '*.py' | xargs -r black "${black[@]}" --line-length 100 --skip-string-normalization
