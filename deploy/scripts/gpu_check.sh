#!/bin/bash
# Checks a host with (or without) an NVIDIA GPU: devices, parity of every primitive with its definition, a memory checker where there is one, real
# training on a cluster of this host, benchmarks. Runs from a bundle (bundle.sh) or a checkout that is built. Prints a table and writes JSON.
#
#   gpu_check.sh [--only parity|train|bench] [--device auto|cpu|gpu|gpu:N] [--precision mixed_bfloat16|tf32|float32: of the benchmarks] [--out gpu_check.json]
#                [--bin FOLDER: where the programs lie] [--seconds 510: for all of it] [--tiny: sizes that try the script and measure nothing]
#
# Each part has a limit of its own, and no more than is left of --seconds: what does not fit is `not run`, with `no time`. To stop what is cut off takes half a
# minute more at most. Ends with 0 when nothing failed and all was run, 1 when something failed, 4 when nothing did and something was not run. Without a
# GPU its rows are `skipped` with the reason, and what the CPU can do runs there.
#
# Two files, whole at any time, for whoever kills it wants to know why: the JSON (`complete` is false and `running` names a part until the end) and, beside
# it, gpu_check.log: what this host is, and what each part and its daemons said, a long one's beginning and end.
set -euo pipefail
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
    -h|--help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "gpu_check.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
case $only in ''|parity|train|bench) ;; *) echo "gpu_check.sh: --only $only: want parity, train or bench" >&2; exit 2 ;; esac
case $device in auto|cpu|gpu|gpu:[0-9]*) ;; *) echo "gpu_check.sh: --device $device: want auto, cpu, gpu or gpu:N" >&2; exit 2 ;; esac

[[ $total =~ ^[1-9][0-9]{0,5}$ ]] || { echo "gpu_check.sh: --seconds $total: want a whole number above 0" >&2; exit 2; }
case $precision in float32|tf32|mixed_bfloat16) ;; *) echo "gpu_check.sh: --precision $precision: want float32, tf32 or mixed_bfloat16" >&2; exit 2 ;; esac

if [[ -x $here/run ]]; then
  bin=$here/bin jobs=$here/jobs bench=$here/bench resnet50=$here/jobs/resnet50.yaml
  "$bin/psctl" --version >/dev/null 2>&1 || export LD_LIBRARY_PATH=$here/lib/gcc${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
else
  top=$(cd "$here/../.." && pwd)
  bin=${programs:-$top/build/release/bin} jobs=$top/deploy/bundle/jobs bench=$top/deploy/bundle/bench resnet50=$top/configs/examples/resnet50.yaml
fi
"$bin/psctl" --version >/dev/null || { echo "gpu_check.sh: $bin/psctl does not run here (above)" >&2; exit 2; }
# Where CUDA's libraries may be beside the places that the linker knows: CUDA's own folder, and the wheels of any Python that is in reach.
python='' libraries_before=${LD_LIBRARY_PATH-}
for candidate in ${VIRTUAL_ENV:+"$VIRTUAL_ENV/bin/python3"} python3; do command -v "$candidate" >/dev/null && { python=$candidate; break; }; done
wheels=$([[ -z $python ]] || "$python" -c 'import glob, sys; print("\n".join(f for s in sys.path for f in sorted(glob.glob(s + "/nvidia/*/lib"))))' 2>/dev/null || true)
for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib $wheels $(ls -d /usr/lib/python3*/site-packages/nvidia/*/lib /usr/local/lib/python3*/*-packages/nvidia/*/lib 2>/dev/null || true); do
  [[ -d $folder ]] && export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=${json%.json}.log cores=$(nproc) gpu='' running=''
: >"$work/rows"
: >"$work/figures"
: >"$log"

escape() { local s=${1//\\/\\\\}; s=${s//\"/\\\"}; s=${s//$'\t'/ }; printf '%s' "${s//[$'\001'-$'\037']/ }"; }
# VERDICT: how many rows have it.
count() { awk -F '\t' -v v="$1" '$2 == v { n++ } END { print n + 0 }' "$work/rows"; }
write_json() {
  local name verdict detail line comma=''
  {
    printf '{"complete": %s, "running": "%s", "cores": %d, "gpu": "%s", "failed": %d, "skipped": %d, "not_run": %d, "seconds": %d, "log": "%s", "rows": [' \
      "$1" "$(escape "$running")" "$cores" "$(escape "$gpu")" "$(count failed)" "$(count skipped)" "$(count 'not run')" "$SECONDS" "$(escape "${log##*/}")"
    while IFS=$'\t' read -r name verdict detail; do
      printf '%s\n {"name": "%s", "verdict": "%s", "detail": "%s"}' "$comma" "$(escape "$name")" "$verdict" "$(escape "$detail")"
      comma=,
    done <"$work/rows"
    printf '\n], "bench": {'
    comma=''
    while read -r line; do printf '%s\n %s' "$comma" "$line"; comma=,; done <"$work/figures"
    printf '\n}}\n'
  } >"$work/json"
  cat "$work/json" >"$json"
}
row() {
  local detail=${3//$'\t'/ }
  printf '%s\t%s\t%s\n' "$1" "$2" "${detail//$'\n'/ | }" >>"$work/rows"
  printf '%-44s %-8s %s\n' "$1" "$2" "$3"
  printf '%-44s %-8s %s\n' "$1" "$2" "$3" >>"$log"
  write_json false
}
# NAME LINE: a benchmark's line of JSON, into ours.
figure() {
  [[ $2 == \{*\} ]] || { row "$1" failed "its last line is not JSON: $2"; return 0; }
  printf '"%s": %s\n' "$1" "$2" >>"$work/figures"
}
# TITLE FILE KIB: into the log; of one that is longer its first quarter and its end.
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
# TITLE FOLDER KIB: what the daemons of a cluster there wrote.
keep_logs() {
  local file
  while read -r file; do keep "$1: ${file#"$work/"}" "$file" "$3"; done < <(find "$2" -name '*.log' 2>/dev/null | sort | head -n 24)
}
# NAME FUNCTION…: a part, in a shell of its own: what goes wrong in it, in this script too, stops no other, and is a row.
part() {
  local status=0
  running=$1
  shift
  write_json false
  rm -f "$work/trouble"
  set +e
  ( set -eE; trap 'printf "line %s: %s\n" "$LINENO" "$BASH_COMMAND" >>"$work/trouble"' ERR; "$@" )
  status=$?
  set -e
  (( status == 0 )) || row "$running" failed "the check itself ended with $status at $(tail -n 1 "$work/trouble" 2>/dev/null || echo 'an unknown line')"
  running=
}
# RC LIMIT: how something ended that did not end well.
ended() {
  if (( $1 == 124 || $1 == 137 )); then echo "no end within $2 s"
  elif (( $1 > 128 )); then echo "killed by signal $(( $1 - 128 ))"
  else echo "rc=$1"; fi
}
# The one clock. NAME LIMIT: `limit` is what a part may take, of LIMIT seconds what is left of all; false, and a row, where that is too little to begin.
least=$(( total < 10 ? total / 2 : 5 ))
may() {
  local left=$(( total - SECONDS ))
  limit=$(( $2 < left ? $2 : left ))
  (( limit < least && limit < $2 )) || return 0
  row "$1" "not run" "no time: $(( left > 0 ? left : 0 )) s of $total s are left"
  return 1
}
# NAME LIMIT RC: what ran for `limit` seconds ended for the clock alone, and a row says so.
cut_off() {
  (( ($3 == 124 || $3 == 137) && limit < $2 )) || return 1
  row "$1" "not run" "no time: cut off after $limit s, of the $2 s that it may take"
}
# FOLDER ROW MOST ENDS OPTIONS…: a cluster there before SECONDS is ENDS; false, and a row, where there is none.
cluster() {
  local folder=$1 as=$2 most=$3 ends=$4 status=0
  shift 4
  timeout -k 5 "$(till "$ends")" "$bin/psctl" cluster up --folder "$folder" --runs "$folder/runs" "$@" >"$folder.out" 2>&1 || status=$?
  (( status )) || return 0
  "$bin/psctl" cluster down --folder "$folder" >/dev/null 2>&1 || true
  keep "$as: cluster up" "$folder.out" 64
  keep_logs "$as" "$folder" 64
  cut_off "$as" "$most" "$status" || row "$as" failed "cluster up: $(ended "$status" "$most"): $(last_words "$folder.out")"
  return 1
}
till() { echo $(( $1 > SECONDS ? $1 - SECONDS : 1 )); }
# The last of what it said, in one line.
last_words() { grep -v '^[[:space:]]*$' "$1" 2>/dev/null | tail -n 4 | awk '{ text = text (NR > 1 ? " | " : "") $0 } END { print substr(text, 1, 800) }' || true; }
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 || true; }

# ---- devices
host() {
  local status=0 libraries
  {
    uname -a
    date -u
    echo "cores $cores; LD_LIBRARY_PATH=${LD_LIBRARY_PATH-}; CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-(not set)}; python ${python:-none}"
    "$bin/psctl" --version
    grep -m 1 'model name' /proc/cpuinfo || true
    grep MemTotal /proc/meminfo || true
    grep -v '^$' /proc/driver/nvidia/version 2>/dev/null || true
    ls -l /dev/nvidia* 2>/dev/null || true
    libraries=${LD_LIBRARY_PATH-}
    [[ -z $libraries ]] || find ${libraries//:/ } -maxdepth 1 '(' -name 'libcudnn*.so*' -o -name 'libcublas*.so*' -o -name 'libcuda.so*' -o -name 'libcudart.so*' ')' 2>/dev/null || true
    if command -v nvidia-smi >/dev/null; then timeout -k 5 20 nvidia-smi || true; fi
  } >"$work/host" 2>&1 </dev/null
  keep host "$work/host" 64
  timeout -k 5 60 "$bin/evergrad-worker" --list-devices >"$work/devices" 2>&1 </dev/null || status=$?
  keep "evergrad-worker --list-devices" "$work/devices" 16
  if (( status == 124 || status == 137 )); then
    row "device" failed "evergrad-worker --list-devices: $(ended "$status" 60)"
  elif (( status )); then
    row "device" skipped "$(last_line "$work/devices")"
  else
    head -n 1 "$work/devices" >"$work/gpu"
    while read -r line; do row "device" ok "$line"; done <"$work/devices"
    if command -v nvidia-smi >/dev/null; then
      row "driver" ok "$(timeout -k 5 20 nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1 || true)"
    fi
  fi
}
part device host
gpu=$(cat "$work/gpu" 2>/dev/null || true)

# ---- parity: each primitive on the GPU with its definition in float64, and gradients of whole models with central differences; a Catch2 program says how
# much of it ran, and what was skipped and why
# Of what it says: the first cause that a device has given, and the first failure with its values, in one line.
first_failure() {
  awk '
    /^-+$/ { header = !header; if (header) name = ""; if (n) done = 1; next }
    header { name = name (name == "" ? "" : " ") $0; next }
    !cause && match($0, /(left|has left): [A-Z_]+: .*/) { cause = substr($0, RSTART); sub(/^[a-z ]+: /, "", cause) }
    /FAILED:|fatal error condition|unexpected exception/ { if (n) done = 1; else { n = 1; of = name } }
    n && !done && NF && n <= 14 { sub(/^[ ]+/, ""); text = text (n > 1 ? " | " : "") $0; n++ }
    END { print substr((cause ? cause " || " : "") (of == "" || !n ? "" : "in \"" of "\": ") text, 1, 1000) }' "$1"
}
# Each case in a process of its own, for a device that has failed takes all that follows in its process with it, and one that hangs too. SECONDS at which it
# is to end; what came of it is in `by_case`.
parity_by_case() {
  local program=$bin/worker_backend_gpu_test ends=$1 name status of=0 passed=0 unrun=0 left each=30
  [[ -z $tiny ]] || each=3
  { timeout -k 5 20 "$program" --list-test-names-only </dev/null 2>/dev/null || true; } >"$work/cases"
  while read -r name; do
    [[ -n $name ]] || continue
    of=$(( of + 1 )) left=$(( ends - SECONDS )) status=0
    (( left > each )) || { unrun=$(( unrun + 1 )); continue; }
    timeout -k 5 "$each" "$program" -w NoTests "$(sed 's/[[,\\]/\\&/g' <<<"$name")" >"$work/case" 2>&1 </dev/null || status=$?
    if (( status == 0 )); then
      passed=$(( passed + 1 ))
    else
      keep "parity: $name ($(ended "$status" "$each"))" "$work/case" 64
      row "parity: $name" failed "$(ended "$status" "$each"): $(first_failure "$work/case")"
    fi
  done <"$work/cases"
  by_case="$passed of $of cases pass, each in a process of its own$( (( unrun == 0 )) || echo ", $unrun not run for want of time")"
}
parity() {
  local status=0 begin=$SECONDS said skipped_because at_once ends
  may parity 240 || return 0
  at_once=$(( limit < 240 ? limit : 100 )) ends=$(( SECONDS + limit ))
  timeout -k 5 "$at_once" "$bin/worker_backend_gpu_test" --durations yes >"$work/parity" 2>&1 </dev/null || status=$?
  keep "parity: all cases in one process" "$work/parity" 512
  cut_off parity 240 "$status" && return 0
  said=$(grep -E 'assertions' "$work/parity" | tail -n 1 || true)
  skipped_because=$(grep -ohE 'no GPU[^"]*' "$work/parity" | head -n 1 || true)
  if (( status )); then
    local by_case
    parity_by_case "$ends"
    row parity failed "in one process: $(ended "$status" "$at_once"): ${said:-no end of it}; $by_case; first of it: $(first_failure "$work/parity")"
  elif [[ -z $said ]]; then
    row parity failed "rc=$status: no assertion was made"
  elif [[ -n $skipped_because ]]; then
    row parity skipped "$(grep -cE 'skipped: no GPU' "$work/parity") cases: $skipped_because"
  else
    row parity ok "$said, $(( SECONDS - begin )) s"
  fi
}
# Behind all else, for it takes what time there is. Statuses of calls are looked at by the program itself, which makes some fail on purpose; the libraries ask
# the driver for what it may lack.
memory_checker() {
  local status=0 found
  if [[ -z $gpu ]]; then row "memory checker" skipped "no GPU"; return 0; fi
  local checker
  checker=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer || true)
  if [[ -z $checker ]]; then row "memory checker" skipped "compute-sanitizer: not available"; return 0; fi
  may "memory checker" 120 || return 0
  timeout -k 5 "$limit" "$checker" --report-api-errors no --error-exitcode 9 "$bin/worker_backend_gpu_test" >"$work/sanitizer" 2>&1 </dev/null || status=$?
  keep "memory checker" "$work/sanitizer" 512
  found=$(grep -cE '^========= +(Invalid|Misaligned|Barrier|Stack|Malloc|Uninitialized)' "$work/sanitizer" || true)
  if (( status == 0 )); then row "memory checker" ok "compute-sanitizer: $(last_line "$work/sanitizer")"
  elif (( status == 124 && found == 0 )); then row "memory checker" ok "compute-sanitizer: nothing found in $limit s, in which not all of it was done"
  else row "memory checker" failed "compute-sanitizer: rc=$status: $(last_line "$work/sanitizer")"; grep -A12 -m 3 -E '^========= +(Invalid|Misaligned)' "$work/sanitizer" || true; fi
}
[[ -n $only && $only != parity ]] || part parity parity

# ---- training: 2 workers and 2 servers on this host
number() { sed -nE 's/.*"'"$1"'":([-0-9.e+]+).*/\1/p' "$2" | head -n 1; }
field() { sed -nE 's/.*"'"$1"'":[[:space:]]*"?([^",}]*).*/\1/p' "$2" | head -n 1; }
# FOLDER: what a worker said there of its device, before what follows from it.
device_said() {
  local said
  said=$(find "$1" -name 'worker*.log' -exec grep -hoE '(backend could not compute|no memory for a batch|the device has failed|does not compute the same values as the CPU)[:].*' '{}' + 2>/dev/null | head -n 1 || true)
  printf '%s' "${said:+${said:0:600} || }"
}
# NAME YAML DEVICE [OPTIONS]: a job on a cluster of its own, its files in $work/NAME; false, and a row, where it failed or there was no time.
ran() {
  local name=$1 job=$2 on=$3 status=0
  shift 3
  may "train: $name" 90 || return 1
  timeout -k 10 "$limit" "$bin/psctl" job run "$job" --local --servers 2 --device "$on" --runs "$work/$name" "$@" </dev/null >"$work/$name.out" 2>&1 || status=$?
  keep "train: $name" "$work/$name.out" 64
  keep_logs "train: $name" "$work/$name" "$( (( status )) && echo 128 || echo 16)"
  (( status )) || return 0
  cut_off "train: $name" 90 "$status" && return 1
  row "train: $name" failed "$(ended "$status" "$limit"): $(device_said "$work/$name")$(last_words "$work/$name.out")"
  return 1
}
train() {
  local name=$1 job=$2 begin=$SECONDS result on
  shift 2
  ran "$name" "$job" "$device" --workers 2 "$@" || return 0
  result=$(find "$work/$name" -name result.json | head -n 1)
  on=$(grep -rhoE 'computes on [^"]*' "$work/$name" | sort -u | head -n 1 || true)
  local verdict=ok
  [[ -z $gpu || $device == cpu || $on == 'computes on gpu:'* ]] || verdict=failed  # there is one, and it was not trusted
  row "train: $name" $verdict "$(field examples_per_second "$result" | cut -d. -f1) examples/s, loss $(field loss "$result"), $(( SECONDS - begin )) s; ${on:-computes on an unknown device}"
}
losses() { grep -rhoE '"train_loss":[-0-9.e+]+' "$work/$1" --include=metrics.jsonl | cut -d: -f2; }
# The losses of 100 steps, in the one order that a deterministic job has, on the GPU beside those on the CPU, ten steps at a time.
curves() {
  local job=$1 precision bound far batch=128 rate=0.0003
  [[ -z $tiny ]] || { batch=2 rate=0.0001; }  # few examples are soon known by heart, and then small differences grow
  local steps=(--workers 1 --set spec.data.train.examples=$(( 10 * batch )) --set spec.data.eval.examples=$(( 10 * batch )) --set spec.data.batch_size=$batch --set spec.training.epochs=10 --set spec.strategy.deterministic=true --set spec.optimizer.learning_rate=$rate)
  ran "$job-on-cpu" "$jobs/$job.yaml" cpu "${steps[@]}" || return 0
  for precision in float32 mixed_bfloat16; do
    bound=0.001
    [[ $precision == float32 ]] || bound=0.02
    ran "$job-$precision" "$jobs/$job.yaml" "${device/auto/gpu}" "${steps[@]}" --set spec.training.precision=$precision || continue
    far=$(paste <(losses "$job-on-cpu") <(losses "$job-$precision") | awk '
      NF == 2 { n++; d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > far) far = d }
      END { if (n != 10) far = 9; printf "%.6f", far }')
    row "curve: $job, $precision" "$(awk "BEGIN {print ($far <= $bound ? \"ok\" : \"failed\")}")" "losses of 100 steps differ from the CPU's by at most $far, bound $bound"
  done
}
# FAULTS W2 and S9: a worker and a server killed in mid-job; then the ledgers say what was applied.
faults() {
  local folder=$work/faults status=0 victim done=0 at state='' step=1000 size=(--set spec.training.epochs=20) ends
  may "faults" 120 || return 0
  ends=$(( SECONDS + limit ))
  [[ -z $tiny ]] || { step=50 size=(--set spec.training.epochs=2 --set spec.data.train.examples=2400 --set spec.data.eval.examples=400 --set spec.data.batch_size=8); }
  cluster "$folder" "faults" 120 "$ends" --workers 2 --servers 2 --device "$device" || return 0
  "$bin/psctl" job submit "$jobs/mlp.yaml" --folder "$folder" "${size[@]}" --set spec.checkpoint.every=500ms >>"$folder.out" 2>&1 || status=$?
  at=$step
  for victim in worker/0 ps_server/0 worker/1 ps_server/1; do
    until (( status || done >= at )); do
      "$bin/psctl" job show mlp-made --folder "$folder" --output json 2>>"$folder.out" | tr -d ' \n' >"$folder.json" || status=$?
      done=$(number steps_done "$folder.json") done=${done:-0} state=$(field state "$folder.json")
      case $state in SUCCEEDED|FAILED|CANCELLED) break ;; esac
      (( SECONDS < ends )) || status=124
    done
    (( status == 0 && done >= at )) || break
    at=$(( done + step ))
    "$bin/psctl" cluster restart --kill "$victim" --folder "$folder" >>"$folder.out" 2>&1 || status=$?
  done
  (( status )) || timeout -k 5 "$(till "$ends")" "$bin/psctl" job watch mlp-made --folder "$folder" >>"$folder.out" 2>&1 </dev/null || status=$?
  (( status )) || "$bin/psctl" job audit --job mlp-made --folder "$folder" >"$folder.audit" 2>&1 || status=$?
  "$bin/psctl" job show mlp-made --folder "$folder" --output json 2>/dev/null | tr -d ' \n' >"$folder.json" || true
  "$bin/psctl" cluster down --folder "$folder" >/dev/null 2>&1 || true
  keep "faults" "$folder.out" 64
  keep "faults: audit" "$folder.audit" 64
  keep_logs "faults" "$folder" "$( (( status )) && echo 128 || echo 16)"
  local deaths=''
  deaths=$(grep -hc '"event":"death"' "$folder"/runs/*/metrics.jsonl 2>/dev/null || true)
  if cut_off "faults" 120 "$status"; then :
  elif (( status )); then
    row "faults" failed "$(ended "$status" "$limit"): $(device_said "$folder")$(last_words "$folder.out")$(last_words "$folder.audit")"
  else
    row "faults: workers and servers killed" "$( (( ${deaths:-0} >= 4 )) && echo ok || echo failed )" "$deaths deaths; $(grep -hE '^exact' "$folder.audit" || last_line "$folder.audit")"
  fi
}
if [[ -z $only || $only == train ]]; then
  few=()
  [[ -z $tiny ]] || few=(--set spec.data.train.examples=160 --set spec.data.eval.examples=80 --set spec.data.batch_size=8)
  part "train: mlp" train mlp "$jobs/mlp.yaml" "${few[@]}"
  part "train: cnn" train cnn "$jobs/cnn.yaml" "${few[@]}"
  if [[ -n $gpu ]]; then
    [[ -n $tiny ]] || part "train: resnet50" train resnet50 "$resnet50" --set spec.data.train.examples=2560 --set spec.data.batch_size=64
    part "curve: mlp" curves mlp
    part "curve: cnn" curves cnn
  else
    for name in "train: resnet50" "curve: mlp" "curve: cnn"; do row "$name" skipped "no GPU"; done
  fi
  part faults faults
fi

# ---- benchmarks: each prints one line of JSON, which goes into ours as it is
of() { sed -nE 's/.*"'"$1"'":\{([^}]*)\}.*/\1/p' "$3" | sed -nE 's/.*"'"$2"'":([-0-9.e+]+).*/\1/p' | head -n 1; }  # of("part", "name", file)
round() { printf "%.${2:-0}f" "${1:-0}"; }
# NAME ROW SECONDS COMMAND…: its line is in $work/NAME; false where it failed, with its status, or, without one, where there was no time, which is a row.
measure() {
  local name=$1 as=$2 most=$3 status=0
  shift 3
  measured_rc=
  may "$as" "$most" || return 1
  timeout -k 5 "$limit" "$@" >"$work/$name" 2>"$work/$name.err" </dev/null || status=$?
  keep "$as" "$work/$name" 64
  keep "$as: stderr" "$work/$name.err" 128
  if (( status == 0 )); then figure "$name" "$(tail -n 1 "$work/$name")"; return 0; fi
  cut_off "$as" "$most" "$status" || measured_rc=$status
  return 1
}
bench_train() {
  local batch=256 image=224 steps=20 job=$resnet50 rate='' measured_rc='' compiled_not=''
  [[ -z $tiny ]] || batch=2 image=28 steps=2 job=$jobs/cnn.yaml
  if measure resnet50 "bench: ResNet-50" 150 "$bin/gpu_bench" train --job "$job" --image "$image" --batch "$batch" --steps "$steps" "${on[@]}"; then
    rate=$(of on_device examples_per_second "$work/resnet50")
    row "bench: ResNet-50, batch $batch, $precision" ok "$(round "$rate") images/s, $(round "$(of on_device step_ms "$work/resnet50")" 1) ms a step; with batch, weights and gradients over and back $(round "$(of from_host examples_per_second "$work/resnet50")") images/s"
    row "bench: time outside kernels" ok "$(round "$(of on_device outside_kernels_share "$work/resnet50")" 4) of a step, $(of on_device replayed "$work/resnet50") of $steps steps replayed (from the first kernel of a step to its last counts as kernels)"
  elif [[ -n $measured_rc ]]; then
    row "bench: ResNet-50" failed "$(ended "$measured_rc" "$limit"): $(last_words "$work/resnet50.err")"
  fi
  local torch_precision=${precision/mixed_bfloat16/bfloat16}
  if [[ -z $python ]]; then
    row "bench: PyTorch" skipped "not available: no python3"
  elif measure torch "bench: PyTorch" 150 env LD_LIBRARY_PATH="$libraries_before" "$python" "$bench/torch_bench.py" --batch "$batch" --image "$image" --steps "$steps" --precision "$torch_precision"; then
    local eager compiled
    eager=$(number eager_images_per_second "$work/torch") compiled=$(number compiled_images_per_second "$work/torch")
    [[ -n $compiled ]] || compiled_not=', not compiled'
    row "bench: PyTorch, the same" ok "$(round "$eager") images/s eager${compiled_not:-}, ${compiled:+$(round "$compiled") compiled}${rate:+; ours is $(round "$(awk "BEGIN {print $rate / $eager}")" 2) of eager${compiled:+, $(round "$(awk "BEGIN {print $rate / $compiled}")" 2) of compiled}}"
  elif [[ $measured_rc == 3 ]]; then
    row "bench: PyTorch" skipped "not available: $(last_line "$work/torch.err")"
  elif [[ -n $measured_rc ]]; then
    row "bench: PyTorch" failed "$(ended "$measured_rc" "$limit"): $(last_words "$work/torch.err")"
  fi
}
bench_mlp() {
  local mlp=(--layers 8 --width 4096 --batch 8192 --steps 10) measured_rc=''
  [[ -z $tiny ]] || mlp=(--layers 2 --width 16 --batch 8 --steps 2)
  if measure mlp "bench: MLP against bare cuBLASLt" 90 "$bin/gpu_bench" mlp "${mlp[@]}" "${on[@]}"; then
    row "bench: MLP against bare cuBLASLt" ok "$(round "$(number share_of_bare "$work/mlp")" 3) of the bare loop's speed: $(round "$(of on_device step_ms "$work/mlp")" 2) ms a step, its products alone $(round "$(of bare step_ms "$work/mlp")" 2) ms"
  elif [[ -n $measured_rc ]]; then
    row "bench: MLP against bare cuBLASLt" failed "$(ended "$measured_rc" "$limit"): $(last_words "$work/mlp.err")"
  fi
}
bench_growth() {
  local many=10000 grown measured_rc=''
  [[ -z $tiny ]] || many=60
  if measure growth "bench: memory over $many steps" 60 "$bin/gpu_bench" growth --steps "$many" "${on[@]}"; then
    grown=$(number grown_bytes "$work/growth")
    row "bench: memory over $many steps" "$( (( grown == 0 )) && echo ok || echo failed )" "device memory grew by $grown bytes; $(round "$(number seconds "$work/growth")" 1) s"
  elif [[ -n $measured_rc ]]; then
    row "bench: memory over $many steps" failed "$(ended "$measured_rc" "$limit"): $(last_words "$work/growth.err")"
  fi
}
# Of the time that a GPU waits for its servers when each step waits for them (pipeline 0), how much is gone when the pull of the next one goes on behind it.
bench_ps() {
  local pipeline folder layer waits=() kernels=''
  for pipeline in 0 1; do
    folder=$work/ps$pipeline
    may "bench: transfers hidden" 90 || return 0
    local ends=$(( SECONDS + limit ))
    local steps=(--set spec.data.train.examples=819200)
    if [[ -n $tiny ]]; then
      steps=(--set spec.data.train.examples=32 --set spec.data.batch_size=2 --set spec.training.steps_per_closure=8)
      # 0.5 million weights: an emulated device would compute for most of the time limit.
      for layer in dense1 dense2 dense3 dense4 dense5; do steps+=(--set "spec.model.layers.$layer.units=350"); done
    fi
    cluster "$folder" "bench: transfers hidden" 90 "$ends" --workers 1 --servers 2 --device "${device/auto/gpu}" || return 0
    local status=0
    timeout -k 5 "$(till "$ends")" "$bin/psctl" job run "$jobs/ps100.yaml" --folder "$folder" --set spec.strategy.pipeline=$pipeline --set spec.training.precision="$precision" "${steps[@]}" >"$folder.out" 2>&1 </dev/null || status=$?
    "$bin/psctl" job show ps100 --folder "$folder" --output json 2>/dev/null | tr -d ' \n' >"$folder.json" || true
    "$bin/psctl" cluster down --folder "$folder" >/dev/null 2>&1 || true
    keep "bench: transfers hidden, pipeline $pipeline" "$folder.out" 64
    keep_logs "bench: transfers hidden, pipeline $pipeline" "$folder" "$( (( status )) && echo 128 || echo 16)"
    cut_off "bench: transfers hidden" 90 "$status" && return 0
    if (( status )); then row "bench: transfers hidden" failed "pipeline $pipeline: $(ended "$status" "$limit"): $(device_said "$folder")$(last_words "$folder.out")"; return; fi
    figure "ps100_pipeline$pipeline" "$(cat "$folder.json")"
    local n waited stalled w
    n=$(number measured_steps "$folder.json") waited=$(number wait "$folder.json") stalled=$(number stalled "$folder.json") w=$(number waits "$folder.json")
    kernels=$(awk "BEGIN {print 1000 * $(number kernels "$folder.json") / $n}")
    waits+=("$(awk "BEGIN {print 1000 * ($stalled / $n + $waited / ($w > 0 ? $w : 1))}")")
  done
  row "bench: transfers hidden" ok "$(awk "BEGIN {printf \"%.2f\", 1 - ${waits[1]} / (${waits[0]} > 0 ? ${waits[0]} : 1)}"): a step of $(round "$kernels" 1) ms kernels waits $(round "${waits[0]}" 1) ms for its servers with pipeline 0 and $(round "${waits[1]}" 1) ms with pipeline 1 (100 MB pushed and pulled)"
}
if [[ -z $only || $only == bench ]]; then
  on=(--device "${device/auto/gpu}" --precision "$precision")
  if [[ -z $gpu ]]; then
    for name in "ResNet-50" "PyTorch" "MLP against bare cuBLASLt" "memory over many steps" "transfers hidden"; do row "bench: $name" skipped "no GPU"; done
  else
    part "bench: ResNet-50 and PyTorch" bench_train
    part "bench: MLP against bare cuBLASLt" bench_mlp
    part "bench: memory over many steps" bench_growth
    part "bench: transfers hidden" bench_ps
  fi
fi

[[ -n $only && $only != parity ]] || part "memory checker" memory_checker

write_json true
failed=$(count failed) skipped=$(count skipped) not_run=$(count 'not run') rows=$(awk 'END { print NR }' "$work/rows")
echo "written: $json and $log ($(( rows - failed - skipped - not_run )) ok, $failed failed, $skipped skipped, $not_run not run for want of time, $SECONDS s)"
(( failed == 0 )) || exit 1
(( not_run == 0 )) || exit 4
