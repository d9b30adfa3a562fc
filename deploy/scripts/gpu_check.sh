#!/bin/bash
# Checks a host with or without an NVIDIA GPU: its devices, parity of each primitive with its
# definition, memory errors (where compute-sanitizer is installed), real training on a cluster of
# this host, and benchmarks. Runs from a bundle (bundle.sh) or from a checkout that has been built.
# Prints a table and writes JSON.
#
#   gpu_check.sh [options]
#     --only parity|train|bench    one part instead of all
#     --device auto|cpu|gpu|gpu:N  device of the workers (default auto)
#     --precision mixed_bfloat16|tf32|float32
#                                  precision of the benchmarks (default mixed_bfloat16)
#     --out gpu_check.json         file for the results
#     --bin FOLDER                 folder of the programs
#     --seconds 510                time limit of the whole check
#     --tiny                       small sizes, which test this script and measure nothing
#
# Each part has a separate time limit, which is never above the remaining part of --seconds. A part
# is `not run`, with the reason `no time`, if too little time remains or if --seconds stops it. A
# stopped part may need half a minute more to end. The exit status is 0 when every part ran and none
# failed, 1 when a part failed, and 4 when no part failed but some did not run. Without a GPU, the
# rows of the GPU are `skipped` with the reason, and all other parts run on the CPU.
#
# The script writes two files, which are complete at any time, so a check that was killed leaves
# usable files. In the JSON file, `complete` is false until the end, and `running` names the present
# part. gpu_check.log, in the same folder, describes the host and has the output of each part and of
# its daemons. If an output is long, the log has its beginning and its end.
set -euo pipefail
fail() { echo "gpu_check.sh: $*" >&2; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
only='' device=auto json=gpu_check.json precision=mixed_bfloat16 programs='' tiny='' total=510
while (( $# )); do
  case $1 in
    --only) only=${2:-}; shift ;;
    --device) device=${2:-}; shift ;;
    --out) json=${2:-}; shift ;;
    --precision) precision=${2:-}; shift ;;
    --bin) programs=${2:-}; shift ;;
    --seconds) total=${2:-}; shift ;;
    --tiny) tiny=yes ;;
    -h|--help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "unknown option $1" ;;
  esac
  shift
done
case $only in
  ''|parity|train|bench) ;;
  *) fail "--only $only: want parity, train or bench" ;;
esac
case $device in
  auto|cpu|gpu|gpu:[0-9]*) ;;
  *) fail "--device $device: want auto, cpu, gpu or gpu:N" ;;
esac
[[ $total =~ ^[1-9][0-9]{0,5}$ ]] || fail "--seconds $total: want a whole number above 0"
case $precision in
  float32|tf32|mixed_bfloat16) ;;
  *) fail "--precision $precision: want float32, tf32 or mixed_bfloat16" ;;
esac

if [[ -x $here/run ]]; then
  bin=$here/bin jobs=$here/jobs bench=$here/bench resnet50=$here/jobs/resnet50.yaml
  "$bin/psctl" --version >/dev/null 2>&1 ||
    export LD_LIBRARY_PATH=$here/lib/gcc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  top=$(cd "$here/../.." && pwd)
  bin=${programs:-$top/build/release/bin}
  jobs=$top/deploy/bundle/jobs bench=$top/deploy/bundle/bench
  resnet50=$top/configs/examples/resnet50.yaml
fi
"$bin/psctl" --version >/dev/null || fail "$bin/psctl does not run on this host; its error is above"

# CUDA's libraries may also be in folders that the dynamic linker does not search: in CUDA's own
# folder, or in the wheels of a Python on this host.
python='' libraries_before=${LD_LIBRARY_PATH-}
for candidate in ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python3"} python3; do
  if command -v "$candidate" >/dev/null; then
    python=$candidate
    break
  fi
done
# The folders of NVIDIA's wheels, one a line.
wheels() {
  local list='import glob, sys
for path in sys.path:
    for folder in sorted(glob.glob(path + "/nvidia/*/lib")):
        print(folder)'
  [[ -z $python ]] || "$python" -c "$list" 2>/dev/null || true
  ls -d /usr/lib/python3*/site-packages/nvidia/*/lib \
    /usr/local/lib/python3*/*-packages/nvidia/*/lib 2>/dev/null || true
}
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib $(wheels); do
  [[ -d $folder ]] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=${json%.json}.log cores=$(nproc) gpu='' running=''
: >"$work/rows"
: >"$work/figures"
: >"$log"

escape() {
  local s=${1//\\/\\\\}
  s=${s//\"/\\\"}
  s=${s//$'\t'/ }
  printf '%s' "${s//[$'\001'-$'\037']/ }"
}
# count VERDICT: the number of rows with this verdict.
count() { awk -F '\t' -v v="$1" '$2 == v { n++ } END { print n + 0 }' "$work/rows"; }
write_json() {
  local name verdict detail line comma=''
  {
    printf '{"complete": %s, "running": "%s", ' "$1" "$(escape "$running")"
    printf '"cores": %d, "gpu": "%s", ' "$cores" "$(escape "$gpu")"
    printf '"failed": %d, "skipped": %d, ' "$(count failed)" "$(count skipped)"
    printf '"not_run": %d, "seconds": %d, ' "$(count 'not run')" "$SECONDS"
    printf '"log": "%s", "rows": [' "$(escape "${log##*/}")"
    while IFS=$'\t' read -r name verdict detail; do
      printf '%s\n {"name": "%s", "verdict": "%s", "detail": "%s"}' \
        "$comma" "$(escape "$name")" "$verdict" "$(escape "$detail")"
      comma=,
    done <"$work/rows"
    printf '\n], "bench": {'
    comma=''
    while read -r line; do
      printf '%s\n %s' "$comma" "$line"
      comma=,
    done <"$work/figures"
    printf '\n}}\n'
  } >"$work/json"
  cat "$work/json" >"$json"
}
# row NAME VERDICT DETAIL…: adds a row to the table, the log and the JSON. Spaces join the details.
row() {
  local name=$1 verdict=$2 detail
  shift 2
  detail="$*"
  printf '%-44s %-8s %s\n' "$name" "$verdict" "$detail"
  printf '%-44s %-8s %s\n' "$name" "$verdict" "$detail" >>"$log"
  detail=${detail//$'\t'/ }
  printf '%s\t%s\t%s\n' "$name" "$verdict" "${detail//$'\n'/ | }" >>"$work/rows"
  write_json false
}
# figure NAME LINE: copies LINE, the line of JSON that a benchmark printed, into this check's JSON.
figure() {
  [[ $2 == \{*\} ]] || { row "$1" failed "the benchmark's last line is not JSON: $2"; return 0; }
  printf '"%s": %s\n' "$1" "$2" >>"$work/figures"
}
# keep TITLE FILE KIB: copies the file into the log. If the file is longer than KIB, only its
# beginning (a quarter of KIB) and its end are copied.
keep() {
  [[ -s $2 ]] || return 0
  {
    printf '\n==== %s\n' "$1"
    if [[ -n $(find "$2" -size +"$3"k) ]]; then
      head -c $(( $3 * 256 )) "$2"
      printf '\n==== … (%s)\n' "$1"
      tail -c $(( $3 * 768 )) "$2"
    else
      cat "$2"
    fi
    printf '\n'
  } | tr -d '\000' >>"$log"
}
# keep_logs TITLE FOLDER KIB: copies the logs of the daemons of the cluster in FOLDER into the log.
keep_logs() {
  local file
  while read -r file; do
    keep "$1: ${file#"$work/"}" "$file" "$3"
  done < <(find "$2" -name '*.log' 2>/dev/null | sort | head -n 24)
}
# kept_kib STATUS: how many KiB of each daemon's log are kept after a run with this exit status.
kept_kib() { if (( $1 )); then echo 128; else echo 16; fi; }
# part NAME FUNCTION…: runs a part of the check in a separate shell. An error in it, or in this
# script, becomes a row and does not stop the other parts.
part() {
  local status=0
  running=$1
  shift
  write_json false
  rm -f "$work/trouble"
  set +e
  (
    set -eE
    trap 'printf "line %s: %s\n" "$LINENO" "$BASH_COMMAND" >>"$work/trouble"' ERR
    "$@"
  )
  status=$?
  set -e
  (( status == 0 )) || row "$running" failed "gpu_check.sh failed in this part, with $status at" \
    "$(tail -n 1 "$work/trouble" 2>/dev/null || echo 'an unknown line')"
  running=
}
# ended RC LIMIT: prints how a command failed.
ended() {
  if (( $1 == 124 || $1 == 137 )); then echo "not finished within $2 s"
  elif (( $1 > 128 )); then echo "killed by signal $(( $1 - 128 ))"
  else echo "rc=$1"; fi
}
# may NAME LIMIT: sets `limit`, the seconds that a part may take, to LIMIT or to the rest of
# --seconds, whichever is less. Returns 1 and adds a row when too little remains to begin.
least=$(( total < 10 ? total / 2 : 5 ))
may() {
  local left=$(( total - SECONDS ))
  limit=$(( $2 < left ? $2 : left ))
  (( limit < least && limit < $2 )) || return 0
  row "$1" "not run" "no time: $(( left > 0 ? left : 0 )) s of $total s are left"
  return 1
}
# cut_off NAME LIMIT RC: returns 0 and adds a row when a command that was given `limit` seconds was
# stopped only because less than LIMIT remained of --seconds.
cut_off() {
  (( ($3 == 124 || $3 == 137) && limit < $2 )) || return 1
  row "$1" "not run" "no time: stopped after $limit s, before the part's own limit of $2 s"
}
# cluster FOLDER ROW LIMIT ENDS OPTIONS…: starts a cluster in FOLDER within LIMIT seconds and before
# the shell's clock SECONDS reaches ENDS. Returns 1 and adds a row when the cluster does not come
# up.
cluster() {
  local folder=$1 as=$2 most=$3 ends=$4 status=0
  shift 4
  timeout -k 5 "$(till "$ends")" "$bin/psctl" cluster up --folder "$folder" \
    --runs "$folder/runs" "$@" >"$folder.out" 2>&1 || status=$?
  (( status )) || return 0
  "$bin/psctl" cluster down --folder "$folder" >/dev/null 2>&1 || true
  keep "$as: cluster up" "$folder.out" 64
  keep_logs "$as" "$folder" 64
  cut_off "$as" "$most" "$status" ||
    row "$as" failed "cluster up: $(ended "$status" "$most"): $(last_words "$folder.out")"
  return 1
}
till() { echo $(( $1 > SECONDS ? $1 - SECONDS : 1 )); }
# last_words FILE: the last four lines that are not blank, in one line.
last_words() {
  grep -v '^[[:space:]]*$' "$1" 2>/dev/null | tail -n 4 | awk '
    { text = text (NR > 1 ? " | " : "") $0 }
    END { print substr(text, 1, 800) }' || true
}
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 || true; }

# ---- devices
host() {
  local status=0 libraries
  {
    uname -a
    date -u
    echo "cores $cores; LD_LIBRARY_PATH=${LD_LIBRARY_PATH-};" \
      "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-(not set)}; python ${python:-none}"
    "$bin/psctl" --version
    grep -m 1 'model name' /proc/cpuinfo || true
    grep MemTotal /proc/meminfo || true
    grep -v '^$' /proc/driver/nvidia/version 2>/dev/null || true
    ls -l /dev/nvidia* 2>/dev/null || true
    libraries=${LD_LIBRARY_PATH-}
    [[ -z $libraries ]] ||
      find ${libraries//:/ } -maxdepth 1 '(' -name 'libcudnn*.so*' -o -name 'libcublas*.so*' \
        -o -name 'libcuda.so*' -o -name 'libcudart.so*' ')' 2>/dev/null || true
    if command -v nvidia-smi >/dev/null; then timeout -k 5 20 nvidia-smi || true; fi
  } >"$work/host" 2>&1 </dev/null
  keep host "$work/host" 64
  timeout -k 5 60 "$bin/evergrad-worker" --list-devices >"$work/devices" 2>&1 </dev/null ||
    status=$?
  keep "evergrad-worker --list-devices" "$work/devices" 16
  if (( status == 124 || status == 137 )); then
    row "device" failed "evergrad-worker --list-devices: $(ended "$status" 60)"
  elif (( status )); then
    row "device" skipped "$(last_line "$work/devices")"
  else
    head -n 1 "$work/devices" >"$work/gpu"
    while read -r line; do row "device" ok "$line"; done <"$work/devices"
    if command -v nvidia-smi >/dev/null; then
      row "driver" ok "$(
        timeout -k 5 20 nvidia-smi --query-gpu=driver_version --format=csv,noheader |
          head -n 1 || true
      )"
    fi
  fi
}
part device host
gpu=$(cat "$work/gpu" 2>/dev/null || true)

# ---- parity: compares each primitive on the GPU with its definition in float64, and gradients of
# whole models with central differences. A Catch2 program counts its assertions and skipped cases.

# first_failure FILE: prints in one line the first cause that a device gave, and the first failed
# case with its values.
first_failure() {
  awk '
    /^-+$/ { header = !header; if (header) name = ""; if (n) done = 1; next }
    header { name = name (name == "" ? "" : " ") $0; next }
    !cause && match($0, /(left|has left): [A-Z_]+: .*/) {
      cause = substr($0, RSTART)
      sub(/^[a-z ]+: /, "", cause)
    }
    /FAILED:|fatal error condition|unexpected exception/ {
      if (n) done = 1; else { n = 1; of = name }
    }
    n && !done && NF && n <= 14 { sub(/^[ ]+/, ""); text = text (n > 1 ? " | " : "") $0; n++ }
    END {
      text = (of == "" || !n ? "" : "in \"" of "\": ") text
      print substr((cause ? cause " || " : "") text, 1, 1000)
    }' "$1"
}
# parity_by_case ENDS: runs each case in a separate process until the shell's clock SECONDS reaches
# ENDS. (In one process, all cases after a failure or a hang of the device would fail, too.) Sets
# `by_case`, the summary.
parity_by_case() {
  local program=$bin/worker_backend_gpu_test ends=$1 name status of=0 passed=0 unrun=0 left each=30
  [[ -z $tiny ]] || each=3
  { timeout -k 5 20 "$program" --list-test-names-only </dev/null 2>/dev/null || true; } \
    >"$work/cases"
  while read -r name; do
    [[ -n $name ]] || continue
    of=$(( of + 1 )) left=$(( ends - SECONDS )) status=0
    (( left > each )) || { unrun=$(( unrun + 1 )); continue; }
    timeout -k 5 "$each" "$program" -w NoTests "$(sed 's/[[,\\]/\\&/g' <<<"$name")" \
      >"$work/case" 2>&1 </dev/null || status=$?
    if (( status == 0 )); then
      passed=$(( passed + 1 ))
    else
      keep "parity: $name ($(ended "$status" "$each"))" "$work/case" 64
      row "parity: $name" failed "$(ended "$status" "$each"): $(first_failure "$work/case")"
    fi
  done <"$work/cases"
  by_case="$passed of $of cases pass, each in a separate process"
  (( unrun == 0 )) || by_case+=", $unrun cases not run because of the time limit"
}
parity() {
  local status=0 begin=$SECONDS said skipped_because at_once ends
  may parity 240 || return 0
  at_once=$(( limit < 240 ? limit : 100 )) ends=$(( SECONDS + limit ))
  timeout -k 5 "$at_once" "$bin/worker_backend_gpu_test" --durations yes \
    >"$work/parity" 2>&1 </dev/null || status=$?
  keep "parity: all cases in one process" "$work/parity" 512
  cut_off parity 240 "$status" && return 0
  said=$(grep -E 'assertions' "$work/parity" | tail -n 1 || true)
  skipped_because=$(grep -ohE 'no GPU[^"]*' "$work/parity" | head -n 1 || true)
  if (( status )); then
    local by_case
    parity_by_case "$ends"
    row parity failed "in one process: $(ended "$status" "$at_once"): ${said:-no summary line};" \
      "$by_case; first failure: $(first_failure "$work/parity")"
  elif [[ -z $said ]]; then
    row parity failed "rc=$status: no assertion was made"
  elif [[ -n $skipped_because ]]; then
    row parity skipped "$(grep -cE 'skipped: no GPU' "$work/parity") cases: $skipped_because"
  else
    row parity ok "$said, $(( SECONDS - begin )) s"
  fi
}
# The memory checker runs last, because it takes all the remaining time. Its own check of failed API
# calls is off for two reasons: the program makes some calls fail on purpose and checks each status
# itself, and the libraries ask the driver for features that it may lack.
memory_checker() {
  local status=0 found checker
  if [[ -z $gpu ]]; then row "memory checker" skipped "no GPU"; return 0; fi
  checker=$(command -v compute-sanitizer ||
    command -v /usr/local/cuda/bin/compute-sanitizer || true)
  if [[ -z $checker ]]; then
    row "memory checker" skipped "compute-sanitizer: not available"
    return 0
  fi
  may "memory checker" 120 || return 0
  timeout -k 5 "$limit" "$checker" --report-api-errors no --error-exitcode 9 \
    "$bin/worker_backend_gpu_test" >"$work/sanitizer" 2>&1 </dev/null || status=$?
  keep "memory checker" "$work/sanitizer" 512
  found=$(grep -cE '^========= +(Invalid|Misaligned|Barrier|Stack|Malloc|Uninitialized)' \
    "$work/sanitizer" || true)
  if (( status == 0 )); then
    row "memory checker" ok "compute-sanitizer: $(last_line "$work/sanitizer")"
  elif (( status == 124 && found == 0 )); then
    row "memory checker" ok "compute-sanitizer: no error in $limit s; stopped before the end"
  else
    row "memory checker" failed \
      "compute-sanitizer: rc=$status: $(last_line "$work/sanitizer")"
    grep -A12 -m 3 -E '^========= +(Invalid|Misaligned)' "$work/sanitizer" || true
  fi
}
[[ -n $only && $only != parity ]] || part parity parity

# ---- training: 2 workers and 2 servers on this host
number() { sed -nE 's/.*"'"$1"'":[[:space:]]*([-0-9.e+]+).*/\1/p' "$2" | head -n 1; }
field() { sed -nE 's/.*"'"$1"'":[[:space:]]*"?([^",}]*).*/\1/p' "$2" | head -n 1; }
# device_said FOLDER: prints the first error of a device in the logs of the workers in FOLDER.
device_said() {
  local said pattern='backend could not compute|out of memory for a batch|the device has failed'
  pattern+='|does not compute the same values as the CPU'
  said=$(find "$1" -name 'worker*.log' -exec grep -hoE "($pattern)[:].*" '{}' + 2>/dev/null |
    head -n 1 || true)
  printf '%s' "${said:+${said:0:600} || }"
}
# ran NAME YAML DEVICE [OPTIONS]: runs a job on a separate cluster, with its files in $work/NAME.
# Returns 1 and adds a row when the job failed or there was no time.
ran() {
  local name=$1 job=$2 on=$3 status=0
  shift 3
  may "train: $name" 90 || return 1
  timeout -k 10 "$limit" "$bin/psctl" job run "$job" --local --servers 2 --device "$on" \
    --runs "$work/$name" "$@" </dev/null >"$work/$name.out" 2>&1 || status=$?
  keep "train: $name" "$work/$name.out" 64
  keep_logs "train: $name" "$work/$name" "$(kept_kib "$status")"
  (( status )) || return 0
  cut_off "train: $name" 90 "$status" && return 1
  row "train: $name" failed \
    "$(ended "$status" "$limit"): $(device_said "$work/$name")$(last_words "$work/$name.out")"
  return 1
}
train() {
  local name=$1 job=$2 begin=$SECONDS result on loss verdict=ok
  shift 2
  ran "$name" "$job" "$device" --workers 2 "$@" || return 0
  result=$(find "$work/$name" -name result.json | head -n 1)
  on=$(grep -rhoE 'computes on [^"]*' "$work/$name" | sort -u | head -n 1 || true)
  # If a GPU was found but not used, it has failed its self-check.
  [[ -z $gpu || $device == cpu || $on == 'computes on gpu:'* ]] || verdict=failed
  loss=$(field loss "$result")  # without evaluation data, only training losses
  row "train: $name" $verdict \
    "$(field examples_per_second "$result" | cut -d. -f1) examples/s," \
    "loss ${loss:-$(losses "$name" | tail -n 1)}, $(( SECONDS - begin )) s;" \
    "${on:-computes on an unknown device}"
}
losses() {
  grep -rhoE '"train_loss":[-0-9.e+]+' "$work/$1" --include=metrics.jsonl | cut -d: -f2
}
# curves JOB: compares the losses of 100 steps on the GPU with the losses on the CPU, ten steps at a
# time. The job is deterministic, so both devices take the steps in the same order.
curves() {
  local job=$1 precision bound far batch=128 rate=0.0003
  # A model soon memorizes a few examples. After that, small differences between the devices grow.
  [[ -z $tiny ]] || { batch=2 rate=0.0001; }
  local steps=(
    --workers 1
    --set "spec.data.train.examples=$(( 10 * batch ))"
    --set "spec.data.eval.examples=$(( 10 * batch ))"
    --set "spec.data.batch_size=$batch"
    --set spec.training.epochs=10
    --set spec.strategy.deterministic=true
    --set "spec.optimizer.learning_rate=$rate"
  )
  ran "$job-on-cpu" "$jobs/$job.yaml" cpu "${steps[@]}" || return 0
  for precision in float32 mixed_bfloat16; do
    bound=0.001
    [[ $precision == float32 ]] || bound=0.02
    ran "$job-$precision" "$jobs/$job.yaml" "${device/auto/gpu}" "${steps[@]}" \
      --set spec.training.precision=$precision || continue
    far=$(paste <(losses "$job-on-cpu") <(losses "$job-$precision") | awk '
      NF == 2 { n++; d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > far) far = d }
      END { if (n != 10) far = 9; printf "%.6f", far }')
    row "curve: $job, $precision" \
      "$(awk "BEGIN {print ($far <= $bound ? \"ok\" : \"failed\")}")" \
      "relative difference from the CPU's losses over 100 steps: at most $far, want at most $bound"
  done
}
# show_job JOB FOLDER: writes the job's JSON, without white space, to FOLDER.json.
show_job() {
  "$bin/psctl" job show "$1" --folder "$2" --output json | tr -d ' \n' >"$2.json"
}
# Scenarios W2 and S9 of tests/chaos: workers and servers are killed in the middle of a job, and the
# ledgers must show each example applied exactly once.
faults() {
  local folder=$work/faults status=0 victim done=0 at state='' step=1000 ends deaths=''
  local size=(--set spec.training.epochs=20)
  may "faults" 120 || return 0
  ends=$(( SECONDS + limit ))
  if [[ -n $tiny ]]; then
    step=50
    size=(--set spec.training.epochs=2 --set spec.data.train.examples=2400
      --set spec.data.eval.examples=400 --set spec.data.batch_size=8)
  fi
  cluster "$folder" "faults" 120 "$ends" --workers 2 --servers 2 --device "$device" || return 0
  "$bin/psctl" job submit "$jobs/mlp.yaml" --folder "$folder" "${size[@]}" \
    --set spec.checkpoint.every=500ms >>"$folder.out" 2>&1 || status=$?
  at=$step
  for victim in worker/0 ps_server/0 worker/1 ps_server/1; do
    until (( status || done >= at )); do
      show_job mlp-made "$folder" 2>>"$folder.out" || status=$?
      done=$(number steps_done "$folder.json") done=${done:-0} state=$(field state "$folder.json")
      case $state in SUCCEEDED|FAILED|CANCELLED) break ;; esac
      (( SECONDS < ends )) || status=124
    done
    (( status == 0 && done >= at )) || break
    at=$(( done + step ))
    "$bin/psctl" cluster restart --kill "$victim" --folder "$folder" >>"$folder.out" 2>&1 ||
      status=$?
  done
  (( status )) || timeout -k 5 "$(till "$ends")" "$bin/psctl" job watch mlp-made \
    --folder "$folder" >>"$folder.out" 2>&1 </dev/null || status=$?
  (( status )) || "$bin/psctl" job audit --job mlp-made --folder "$folder" \
    >"$folder.audit" 2>&1 || status=$?
  show_job mlp-made "$folder" 2>/dev/null || true
  "$bin/psctl" cluster down --folder "$folder" >/dev/null 2>&1 || true
  keep "faults" "$folder.out" 64
  keep "faults: audit" "$folder.audit" 64
  keep_logs "faults" "$folder" "$(kept_kib "$status")"
  deaths=$(grep -hc '"event":"death"' "$folder"/runs/*/metrics.jsonl 2>/dev/null || true)
  if cut_off "faults" 120 "$status"; then :
  elif (( status )); then
    row "faults" failed "$(ended "$status" "$limit"):" \
      "$(device_said "$folder")$(last_words "$folder.out")$(last_words "$folder.audit")"
  else
    row "faults: workers and servers killed" \
      "$( (( ${deaths:-0} >= 4 )) && echo ok || echo failed )" \
      "$deaths deaths; $(grep -hE '^exact' "$folder.audit" || last_line "$folder.audit")"
  fi
}
if [[ -z $only || $only == train ]]; then
  few=()
  [[ -z $tiny ]] || few=(--set spec.data.train.examples=160 --set spec.data.eval.examples=80
    --set spec.data.batch_size=8)
  part "train: mlp" train mlp "$jobs/mlp.yaml" "${few[@]}"
  part "train: cnn" train cnn "$jobs/cnn.yaml" "${few[@]}"
  if [[ -n $gpu ]]; then
    [[ -n $tiny ]] || part "train: resnet50" train resnet50 "$resnet50" \
      --set spec.data.train.examples=2560 --set spec.data.batch_size=64
    part "curve: mlp" curves mlp
    part "curve: cnn" curves cnn
  else
    for name in "train: resnet50" "curve: mlp" "curve: cnn"; do row "$name" skipped "no GPU"; done
  fi
  part faults faults
fi

# ---- benchmarks: each prints one line of JSON, which is copied unchanged into this check's JSON

# of PART NAME FILE: prints the number NAME of the JSON object PART in FILE.
of() {
  sed -nE 's/.*"'"$1"'":\{([^}]*)\}.*/\1/p' "$3" |
    sed -nE 's/.*"'"$2"'":([-0-9.e+]+).*/\1/p' | head -n 1
}
round() { printf "%.${2:-0}f" "${1:-0}"; }
ratio() { round "$(awk "BEGIN {print $1 / $2}")" 2; }
# measure NAME ROW LIMIT COMMAND…: writes the benchmark's line to $work/bench-NAME, because
# $work/NAME is the folder of the training. Returns 1 when the benchmark failed or there was no
# time. `measured_rc` is then the exit status of the benchmark, or empty if a row says `no time`.
measure() {
  local name=$1 as=$2 most=$3 status=0
  shift 3
  measured_rc=
  may "$as" "$most" || return 1
  timeout -k 5 "$limit" "$@" >"$work/bench-$name" 2>"$work/bench-$name.err" </dev/null || status=$?
  keep "$as" "$work/bench-$name" 64
  keep "$as: stderr" "$work/bench-$name.err" 128
  if (( status == 0 )); then figure "$name" "$(tail -n 1 "$work/bench-$name")"; return 0; fi
  cut_off "$as" "$most" "$status" || measured_rc=$status
  return 1
}
bench_train() {
  local size=(--batch 256 --image 224 --steps 20) batch=256 steps=20 job=$resnet50
  local rate='' measured_rc=''
  if [[ -n $tiny ]]; then
    size=(--batch 2 --image 28 --steps 2) batch=2 steps=2 job=$jobs/cnn.yaml
  fi
  if measure resnet50 "bench: ResNet-50" 150 "$bin/gpu_bench" train --job "$job" "${size[@]}" \
    "${on[@]}"; then
    rate=$(of on_device examples_per_second "$work/bench-resnet50")
    row "bench: ResNet-50, batch $batch, $precision" ok "$(round "$rate") images/s," \
      "$(round "$(of on_device step_ms "$work/bench-resnet50")" 1) ms a step;" \
      "with copies of batch, weights and gradients to and from the GPU" \
      "$(round "$(of from_host examples_per_second "$work/bench-resnet50")") images/s"
    row "bench: time outside kernels" ok \
      "$(round "$(of on_device outside_kernels_share "$work/bench-resnet50")" 4) of a step," \
      "$(of on_device replayed "$work/bench-resnet50") of $steps steps replayed" \
      "(the time from the first kernel of a step to its last kernel counts as kernel time)"
  elif [[ -n $measured_rc ]]; then
    row "bench: ResNet-50" failed \
      "$(ended "$measured_rc" "$limit"): $(last_words "$work/bench-resnet50.err")"
  fi
  if [[ -z $python ]]; then
    row "bench: PyTorch" skipped "not available: no python3"
  elif measure torch "bench: PyTorch" 150 env LD_LIBRARY_PATH="$libraries_before" "$python" \
    "$bench/torch_bench.py" "${size[@]}" --precision "${precision/mixed_bfloat16/bfloat16}"; then
    local eager compiled compiled_said=', not compiled' ours=''
    eager=$(number eager_images_per_second "$work/bench-torch")
    compiled=$(number compiled_images_per_second "$work/bench-torch")
    [[ -z $compiled ]] || compiled_said=", $(round "$compiled") compiled"
    [[ -z $rate ]] || ours="; Evergrad has $(ratio "$rate" "$eager") of the eager rate"
    [[ -z $rate || -z $compiled ]] || ours+=", $(ratio "$rate" "$compiled") of the compiled rate"
    row "bench: PyTorch, the same" ok "$(round "$eager") images/s eager$compiled_said$ours"
  elif [[ $measured_rc == 3 ]]; then
    row "bench: PyTorch" skipped "not available: $(last_line "$work/bench-torch.err")"
  elif [[ -n $measured_rc ]]; then
    row "bench: PyTorch" failed \
      "$(ended "$measured_rc" "$limit"): $(last_words "$work/bench-torch.err")"
  fi
}
bench_mlp() {
  local mlp=(--layers 8 --width 4096 --batch 8192 --steps 10) measured_rc=''
  local name="bench: MLP against bare cuBLASLt"
  [[ -z $tiny ]] || mlp=(--layers 2 --width 16 --batch 8 --steps 2)
  if measure mlp "$name" 90 "$bin/gpu_bench" mlp "${mlp[@]}" "${on[@]}"; then
    row "$name" ok \
      "$(round "$(number share_of_bare "$work/bench-mlp")" 3) of a bare cuBLASLt loop's speed:" \
      "$(round "$(of on_device step_ms "$work/bench-mlp")" 2) ms a step," \
      "$(round "$(of bare step_ms "$work/bench-mlp")" 2) ms for the bare products"
  elif [[ -n $measured_rc ]]; then
    row "$name" failed "$(ended "$measured_rc" "$limit"): $(last_words "$work/bench-mlp.err")"
  fi
}
bench_growth() {
  local many=10000 grown name measured_rc=''
  [[ -z $tiny ]] || many=60
  name="bench: memory over $many steps"
  if measure growth "$name" 60 "$bin/gpu_bench" growth --steps "$many" "${on[@]}"; then
    grown=$(number grown_bytes "$work/bench-growth")
    row "$name" "$( (( grown == 0 )) && echo ok || echo failed )" \
      "device memory grew by $grown bytes; $(round "$(number seconds "$work/bench-growth")" 1) s"
  elif [[ -n $measured_rc ]]; then
    row "$name" failed "$(ended "$measured_rc" "$limit"): $(last_words "$work/bench-growth.err")"
  fi
}
# Runs the same training with pipeline 0, where each step waits for its servers, and with pipeline
# 1, where the pull of the next step runs in the background. Measures how much of the GPU's waiting
# time disappears with pipeline 1.
bench_ps() {
  local pipeline folder layer ends status n waited stalled pulls waits=() kernels=''
  local name="bench: transfers hidden" steps=(--set spec.data.train.examples=819200)
  if [[ -n $tiny ]]; then
    steps=(--set spec.data.train.examples=32 --set spec.data.batch_size=2
      --set spec.training.steps_per_closure=8)
    # An emulated device would compute for most of the time limit, so the model is made smaller: 0.5
    # million weights.
    for layer in dense1 dense2 dense3 dense4 dense5; do
      steps+=(--set "spec.model.layers.$layer.units=350")
    done
  fi
  for pipeline in 0 1; do
    folder=$work/ps$pipeline
    may "$name" 90 || return 0
    ends=$(( SECONDS + limit )) status=0
    cluster "$folder" "$name" 90 "$ends" --workers 1 --servers 2 --device "${device/auto/gpu}" ||
      return 0
    timeout -k 5 "$(till "$ends")" "$bin/psctl" job run "$jobs/ps100.yaml" --folder "$folder" \
      --set spec.strategy.pipeline=$pipeline --set spec.training.precision="$precision" \
      "${steps[@]}" >"$folder.out" 2>&1 </dev/null || status=$?
    show_job ps100 "$folder" 2>/dev/null || true
    "$bin/psctl" cluster down --folder "$folder" >/dev/null 2>&1 || true
    keep "$name, pipeline $pipeline" "$folder.out" 64
    keep_logs "$name, pipeline $pipeline" "$folder" "$(kept_kib "$status")"
    cut_off "$name" 90 "$status" && return 0
    if (( status )); then
      row "$name" failed "pipeline $pipeline: $(ended "$status" "$limit"):" \
        "$(device_said "$folder")$(last_words "$folder.out")"
      return
    fi
    figure "ps100_pipeline$pipeline" "$(cat "$folder.json")"
    n=$(number measured_steps "$folder.json") waited=$(number wait "$folder.json")
    stalled=$(number stalled "$folder.json") pulls=$(number waits "$folder.json")
    kernels=$(awk "BEGIN {print 1000 * $(number kernels "$folder.json") / $n}")
    waits+=("$(awk "BEGIN {print 1000 * ($stalled / $n + $waited / ($pulls > 0 ? $pulls : 1))}")")
  done
  row "$name" ok \
    "$(awk "BEGIN {printf \"%.2f\", 1 - ${waits[1]} / (${waits[0]} > 0 ? ${waits[0]} : 1)}"):" \
    "a step with $(round "$kernels" 1) ms of kernels" \
    "waits $(round "${waits[0]}" 1) ms for its servers" \
    "with pipeline 0 and $(round "${waits[1]}" 1) ms with pipeline 1 (100 MB pushed and pulled)"
}
if [[ -z $only || $only == bench ]]; then
  on=(--device "${device/auto/gpu}" --precision "$precision")
  if [[ -z $gpu ]]; then
    for name in "ResNet-50" "PyTorch" "MLP against bare cuBLASLt" "memory over many steps" \
      "transfers hidden"; do
      row "bench: $name" skipped "no GPU"
    done
  else
    part "bench: ResNet-50 and PyTorch" bench_train
    part "bench: MLP against bare cuBLASLt" bench_mlp
    part "bench: memory over many steps" bench_growth
    part "bench: transfers hidden" bench_ps
  fi
fi

[[ -n $only && $only != parity ]] || part "memory checker" memory_checker

write_json true
failed=$(count failed) skipped=$(count skipped) not_run=$(count 'not run')
rows=$(awk 'END { print NR }' "$work/rows")
echo "written: $json and $log ($(( rows - failed - skipped - not_run )) ok, $failed failed," \
  "$skipped skipped, $not_run not run because of the time limit, $SECONDS s)"
(( failed == 0 )) || exit 1
(( not_run == 0 )) || exit 4
