#!/usr/bin/env bash
# clang-format over the project's own sources; --check changes nothing and fails when something would change.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
mode=(-i)
[[ ${1:-} == --check ]] && mode=(--dry-run --Werror)
git ls-files '*.cc' '*.h' | xargs -r -n 40 clang-format-14 "${mode[@]}"
