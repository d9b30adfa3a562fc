#!/usr/bin/env bash
# Runs the checks that need no build (CONTRIBUTING.md describes them) and prints the time of each.
# If a check fails, the remaining checks still run, and the script ends with 1. `setup.sh lint`
# installs the packages that the checks need.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."

format() { bash deploy/scripts/format.sh --check; }
line_width() { /usr/bin/python3 tests/structure/line_width.py; }
include_rules() { /usr/bin/python3 tests/structure/include_rules.py; }
python_names() { /usr/bin/python3 tests/structure/python_names.py; }
sizes() { /usr/bin/python3 tests/structure/sizes.py; }
spelling() { git ls-files -z --cached --others --exclude-standard | xargs -0 codespell; }
phrases() { /usr/bin/python3 tests/structure/phrases.py; }
markdown() { /usr/bin/python3 tests/structure/markdown.py; }

failed=()
for check in format line_width include_rules python_names sizes spelling phrases markdown; do
  begin=${EPOCHREALTIME/[.,]/}
  "$check" && result=passed || { result=failed; failed+=("$check"); }
  took=$(( (${EPOCHREALTIME/[.,]/} - begin) / 100000 ))
  printf '== %-13s %s in %d.%d s\n' "$check" "$result" $(( took / 10 )) $(( took % 10 ))
done
(( ${#failed[@]} == 0 )) && exit 0
echo "checks.sh: failed: ${failed[*]}" >&2
exit 1
