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
    -h|--help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
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

names=() verdicts=() details=()
row() { names+=("$1"); verdicts+=("$2"); details+=("$3"); printf '%-44s %-8s %s\n' "$1" "$2" "$3"; }
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
  cut_off "$as" "$most" "$status" || row "$as" failed "$(last_line "$folder.out")"
  return 1
}
till() { echo $(( $1 > SECONDS ? $1 - SECONDS : 1 )); }
last_line() { grep -v '^[[:space:]]*$' "$1" | tail -n 1 || true; }

# ---- devices
gpu=
if "$bin/evergrad-worker" --list-devices >"$work/devices" 2>&1; then
  gpu=$(head -n 1 "$work/devices")
  while read -r line; do row "device" ok "$line"; done <"$work/devices"
  command -v nvidia-smi >/dev/null && row "driver" ok "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)"
else
  row "device" skipped "$(last_line "$work/devices")"
fi
cores=$(nproc)

# ---- parity: each primitive on the GPU with its definition in float64; a Catch2 program says how much of it ran, and what was skipped and why
parity() {
  local status=0 begin=$SECONDS said skipped_because
  may parity 180 || return 0
  timeout -k 5 "$limit" "$bin/worker_backend_gpu_test" >"$work/parity" 2>&1 || status=$?
  cut_off parity 180 "$status" && return 0
  said=$(grep -E 'assertions' "$work/parity" | tail -n 1 || true)
  skipped_because=$(grep -ohE 'no GPU[^"]*' "$work/parity" | head -n 1 || true)
  if (( status )) || [[ -z $said ]]; then
    row parity failed "rc=$status: ${said:-no assertion was made}"
    tail -n 30 "$work/parity"
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
  timeout -k 5 "$limit" "$checker" --report-api-errors no --error-exitcode 9 "$bin/worker_backend_gpu_test" >"$work/sanitizer" 2>&1 || status=$?
  found=$(grep -cE '^========= +(Invalid|Misaligned|Barrier|Stack|Malloc|Uninitialized)' "$work/sanitizer" || true)
  if (( status == 0 )); then row "memory checker" ok "compute-sanitizer: $(last_line "$work/sanitizer")"
  elif (( status == 124 && found == 0 )); then row "memory checker" ok "compute-sanitizer: nothing found in $limit s, in which not all of it was done"
  else row "memory checker" failed "compute-sanitizer: rc=$status: $(last_line "$work/sanitizer")"; grep -A12 -m 3 -E '^========= +(Invalid|Misaligned)' "$work/sanitizer" || true; fi
}
[[ -n $only && $only != parity ]] || parity

# ---- training: 2 workers and 2 servers on this host
number() { sed -nE 's/.*"'"$1"'":([-0-9.e+]+).*/\1/p' "$2" | head -n 1; }
field() { sed -nE 's/.*"'"$1"'":[[:space:]]*"?([^",}]*).*/\1/p' "$2" | head -n 1; }
# NAME YAML DEVICE [OPTIONS]: a job on a cluster of its own, its files in $work/NAME; false, and a row, where it failed or there was no time.
ran() {
  local name=$1 job=$2 on=$3 status=0
  shift 3
  may "train: $name" 90 || return 1
  timeout -k 10 "$limit" "$bin/psctl" job run "$job" --local --servers 2 --device "$on" --runs "$work/$name" "$@" </dev/null >"$work/$name.out" 2>&1 || status=$?
  (( status )) || return 0
  cut_off "train: $name" 90 "$status" && return 1
  row "train: $name" failed "rc=$status: $(last_line "$work/$name.out")"
  tail -n 15 "$work/$name.out"
  return 1
}
train() {
  local name=$1 job=$2 begin=$SECONDS result on
  shift 2
  ran "$name" "$job" "$device" --workers 2 "$@" || return 0
  result=$(find "$work/$name" -name result.json | head -n 1)
  on=$(grep -rhoE 'computes on [^"]*' "$work/$name" | sort -u | head -n 1 || true)
  row "train: $name" ok "$(field examples_per_second "$result" | cut -d. -f1) examples/s, loss $(field loss "$result"), $(( SECONDS - begin )) s; ${on:-computes on an unknown device}"
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
  local deaths=''
  deaths=$(grep -hc '"event":"death"' "$folder"/runs/*/metrics.jsonl 2>/dev/null || true)
  if cut_off "faults" 120 "$status"; then :
  elif (( status )); then
    row "faults" failed "rc=$status: $(last_line "$folder.out")$(last_line "$folder.audit" 2>/dev/null)"
    tail -n 15 "$folder.out"
  else
    row "faults: workers and servers killed" "$( (( ${deaths:-0} >= 4 )) && echo ok || echo failed )" "$deaths deaths; $(grep -hE '^exact' "$folder.audit" || last_line "$folder.audit")"
  fi
}
if [[ -z $only || $only == train ]]; then
  few=()
  [[ -z $tiny ]] || few=(--set spec.data.train.examples=160 --set spec.data.eval.examples=80 --set spec.data.batch_size=8)
  train mlp "$jobs/mlp.yaml" "${few[@]}"
  train cnn "$jobs/cnn.yaml" "${few[@]}"
  if [[ -n $gpu ]]; then
    [[ -n $tiny ]] || train resnet50 "$resnet50" --set spec.data.train.examples=2560 --set spec.data.batch_size=64
    curves mlp
    curves cnn
  else
    for name in "train: resnet50" "curve: mlp" "curve: cnn"; do row "$name" skipped "no GPU"; done
  fi
  faults
fi

# ---- benchmarks: each prints one line of JSON, which goes into ours as it is
figures=()
of() { sed -nE 's/.*"'"$1"'":\{([^}]*)\}.*/\1/p' "$3" | sed -nE 's/.*"'"$2"'":([-0-9.e+]+).*/\1/p' | head -n 1; }  # of("part", "name", file)
round() { printf "%.${2:-0}f" "${1:-0}"; }
# NAME ROW SECONDS COMMAND…: its line is in $work/NAME; false where it failed, with its status, or, without one, where there was no time, which is a row.
measure() {
  local name=$1 as=$2 most=$3 status=0
  shift 3
  measured_rc=
  may "$as" "$most" || return 1
  timeout -k 5 "$limit" "$@" >"$work/$name" 2>"$work/$name.err" </dev/null || status=$?
  if (( status == 0 )); then figures+=("\"$name\": $(tail -n 1 "$work/$name")"); return 0; fi
  cut_off "$as" "$most" "$status" || measured_rc=$status
  return 1
}
bench() {
  local gpu_bench=$bin/gpu_bench on=(--device "${device/auto/gpu}" --precision "$precision")
  local batch=256 image=224 steps=20 mlp=(--layers 8 --width 4096 --batch 8192 --steps 10) many=10000 job=$resnet50
  if [[ -n $tiny ]]; then batch=2 image=28 steps=2 mlp=(--layers 2 --width 16 --batch 8 --steps 2) many=60 job=$jobs/cnn.yaml; fi
  local rate='' measured_rc=''
  if measure resnet50 "bench: ResNet-50" 150 "$gpu_bench" train --job "$job" --image "$image" --batch "$batch" --steps "$steps" "${on[@]}"; then
    rate=$(of on_device examples_per_second "$work/resnet50")
    row "bench: ResNet-50, batch $batch, $precision" ok "$(round "$rate") images/s, $(round "$(of on_device step_ms "$work/resnet50")" 1) ms a step; with batch, weights and gradients over and back $(round "$(of from_host examples_per_second "$work/resnet50")") images/s"
    row "bench: time outside kernels" ok "$(round "$(of on_device outside_kernels_share "$work/resnet50")" 4) of a step, $(of on_device replayed "$work/resnet50") of $steps steps replayed (from the first kernel of a step to its last counts as kernels)"
  elif [[ -n $measured_rc ]]; then
    row "bench: ResNet-50" failed "rc=$measured_rc: $(last_line "$work/resnet50.err")"
  fi
  local torch_precision=${precision/mixed_bfloat16/bfloat16} compiled_not=''
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
    row "bench: PyTorch" failed "rc=$measured_rc: $(last_line "$work/torch.err")"
  fi
  if measure mlp "bench: MLP against bare cuBLASLt" 90 "$gpu_bench" mlp "${mlp[@]}" "${on[@]}"; then
    row "bench: MLP against bare cuBLASLt" ok "$(round "$(number share_of_bare "$work/mlp")" 3) of the bare loop's speed: $(round "$(of on_device step_ms "$work/mlp")" 2) ms a step, its products alone $(round "$(of bare step_ms "$work/mlp")" 2) ms"
  elif [[ -n $measured_rc ]]; then
    row "bench: MLP against bare cuBLASLt" failed "rc=$measured_rc: $(last_line "$work/mlp.err")"
  fi
  if measure growth "bench: memory over $many steps" 60 "$gpu_bench" growth --steps "$many" "${on[@]}"; then
    local grown
    grown=$(number grown_bytes "$work/growth")
    row "bench: memory over $many steps" "$( (( grown == 0 )) && echo ok || echo failed )" "device memory grew by $grown bytes; $(round "$(number seconds "$work/growth")" 1) s"
  elif [[ -n $measured_rc ]]; then
    row "bench: memory over $many steps" failed "rc=$measured_rc: $(last_line "$work/growth.err")"
  fi
  bench_ps
}
# Of the time that a GPU waits for its servers when each step waits for them (pipeline 0), how much is gone when the pull of the next one goes on behind it.
bench_ps() {
  local pipeline folder waits=() kernels=''
  for pipeline in 0 1; do
    folder=$work/ps$pipeline
    may "bench: transfers hidden" 90 || return 0
    local ends=$(( SECONDS + limit ))
    local steps=(--set spec.data.train.examples=819200)
    [[ -n $tiny ]] && steps=(--set spec.data.train.examples=32 --set spec.data.batch_size=2 --set spec.training.steps_per_closure=8)
    cluster "$folder" "bench: transfers hidden" 90 "$ends" --workers 1 --servers 2 --device "${device/auto/gpu}" || return 0
    local status=0
    timeout -k 5 "$(till "$ends")" "$bin/psctl" job run "$jobs/ps100.yaml" --folder "$folder" --set spec.strategy.pipeline=$pipeline --set spec.training.precision="$precision" "${steps[@]}" >"$folder.out" 2>&1 </dev/null || status=$?
    "$bin/psctl" job show ps100 --folder "$folder" --output json 2>/dev/null | tr -d ' \n' >"$folder.json" || true
    "$bin/psctl" cluster down --folder "$folder" >/dev/null 2>&1 || true
    cut_off "bench: transfers hidden" 90 "$status" && return 0
    if (( status )); then row "bench: transfers hidden" failed "pipeline $pipeline: rc=$status: $(last_line "$folder.out")"; return; fi
    figures+=("\"ps100_pipeline$pipeline\": $(cat "$folder.json")")
    local n waited stalled w
    n=$(number measured_steps "$folder.json") waited=$(number wait "$folder.json") stalled=$(number stalled "$folder.json") w=$(number waits "$folder.json")
    kernels=$(awk "BEGIN {print 1000 * $(number kernels "$folder.json") / $n}")
    waits+=("$(awk "BEGIN {print 1000 * ($stalled / $n + $waited / ($w > 0 ? $w : 1))}")")
  done
  row "bench: transfers hidden" ok "$(awk "BEGIN {printf \"%.2f\", 1 - ${waits[1]} / (${waits[0]} > 0 ? ${waits[0]} : 1)}"): a step of $(round "$kernels" 1) ms kernels waits $(round "${waits[0]}" 1) ms for its servers with pipeline 0 and $(round "${waits[1]}" 1) ms with pipeline 1 (100 MB pushed and pulled)"
}
if [[ -z $only || $only == bench ]]; then
  if [[ -z $gpu ]]; then
    for name in "ResNet-50" "PyTorch" "MLP against bare cuBLASLt" "memory over many steps" "transfers hidden"; do row "bench: $name" skipped "no GPU"; done
  else
    bench
  fi
fi

[[ -n $only && $only != parity ]] || memory_checker

failed=0 skipped=0 not_run=0
for v in "${verdicts[@]}"; do case $v in failed) failed=$(( failed + 1 )) ;; skipped) skipped=$(( skipped + 1 )) ;; 'not run') not_run=$(( not_run + 1 )) ;; esac; done
escape() { local s=${1//\\/\\\\}; s=${s//\"/\\\"}; printf '%s' "${s//$'\t'/ }"; }
{
  printf '{"cores": %d, "gpu": "%s", "failed": %d, "skipped": %d, "not_run": %d, "seconds": %d, "rows": [' "$cores" "$(escape "$gpu")" "$failed" "$skipped" "$not_run" "$SECONDS"
  for i in "${!names[@]}"; do
    (( i )) && printf ','
    printf '\n {"name": "%s", "verdict": "%s", "detail": "%s"}' "$(escape "${names[i]}")" "${verdicts[i]}" "$(escape "${details[i]}")"
  done
  printf '\n], "bench": {'
  for i in "${!figures[@]}"; do
    (( i )) && printf ','
    printf '\n %s' "${figures[i]}"
  done
  printf '\n}}\n'
} >"$json"
echo "written: $json ($(( ${#names[@]} - failed - skipped - not_run )) ok, $failed failed, $skipped skipped, $not_run not run for want of time, $SECONDS s)"
(( failed == 0 )) || exit 1
(( not_run == 0 )) || exit 4
