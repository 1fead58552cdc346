#!/usr/bin/env bash
# Runs the benchmarks for accelerators, in pieces of at most 8 minutes.
#   benchmarks/accelerator.sh wheels   downloads packages for a machine without
#                                      a network
#   benchmarks/accelerator.sh PIECE... [--json=FILE]   e.g. correct base small
#   benchmarks/accelerator.sh all [--json=FILE]        all pieces, in order
#   benchmarks/accelerator.sh table [--json=FILE]      prints the figures, on an
#                                      H100 beside the bounds of roofline.py
# Pieces, in order: correct, resume, base, small, bert, overheads, overheads-small,
# attention, dropout, large, batches, flags. The first are the paper's recipe,
# with all of its dropout. Each runs without the others, and after a failed one. Figures are appended to FILE, default build/accelerator/figures.json.
# Compiled code is cached next to it. Exit code 1: a piece failed.
# Needs Python 3.12 with jax 0.11.2 and its GPU plugin, flax, optax,
# orbax-checkpoint, transformers, safetensors, scipy and rich, but no network:
# `wheels` downloads the other packages, for x86-64.
#   PYTHON: the Python to run, default python3
#   LIMIT: seconds per piece, default 470
#   TOY=1: small sizes, also without an accelerator, to test the script
# Tested at small sizes on a CPU, never yet on an accelerator.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3} limit=${LIMIT:-470}
wheels=$root/benchmarks/wheels
json=$root/build/accelerator/figures.json
pieces=(correct resume base small bert overheads overheads-small attention dropout
  large batches flags)

fetch_wheels() {
  "$python" -m pip -qq --disable-pip-version-check download --no-deps \
    --only-binary=:all: --python-version 3.12 --implementation cp \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
    --platform manylinux2014_x86_64 -c "$root/launch/constraints.txt" \
    -d "$wheels" ml_collections PyYAML absl-py
  ls "$wheels"
}

# Installs missing packages in a folder, once, and prints it. Prints nothing if
# no package is missing.
install_missing() {
  local folder
  "$python" -c 'import absl, ml_collections, yaml' 2>/dev/null && return
  folder=$(dirname "$json")/site
  if ! [ -d "$folder" ]; then
    "$python" -m pip -qq --disable-pip-version-check install --no-index \
      --no-deps --no-compile --target "$folder.new" "$wheels"/*.whl >&2 || {
      echo "error: Packages are missing. Run 'benchmarks/accelerator.sh" \
        "wheels' where there is a network and copy benchmarks/wheels here." >&2
      return 1
    }
    mv "$folder.new" "$folder" || return
  fi
  echo "$folder"
}

prepare() {
  mkdir -p "$(dirname "$json")"
  local added
  added=$(install_missing)
  PYTHONPATH=$root${added:+:$added}${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH PYTHONUNBUFFERED=1
  export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.9}
  JAX_COMPILATION_CACHE_DIR=$(dirname "$json")/xla
  export JAX_COMPILATION_CACHE_DIR JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=1
  # The CPU too, to compare numbers with. JAX fails if there is no GPU.
  [ "${TOY:-}" ] || export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda,cpu}
}

print_clocks() {
  nvidia-smi --query-gpu=name,clocks.sm,clocks.max.sm,clocks.mem,power.draw,\
temperature.gpu,driver_version --format=csv,noheader 2>/dev/null || true
}

# --- functions that run one benchmark; if it fails, the next one still runs ---

run() { # SCRIPT ARGUMENTS...
  local script=$1 left=$((began + limit - SECONDS))
  shift
  echo "--- $script $*"
  # --foreground: Ctrl-C reaches the benchmark. 0 seconds would be no limit.
  timeout --foreground -k 10 "$((left > 0 ? left : 1))" \
    "$python" "$root/benchmarks/$script" "$@" || {
    echo "error: Exit code $? (124: out of time): $script $*" >&2
    failed=1
  }
}

run_config() { # SCRIPT CONFIG BATCH LENGTH ARGUMENTS...
  local script=$1 config=$2 sizes=("--config.batch_size=$3" "--config.length=$4")
  shift 4
  if [ "${TOY:-}" ]; then
    config+=,runlocal
    sizes=(--config.batch_size=4 --config.length=32)
  fi
  run "$script" "--config=$config" "${sizes[@]}" \
    --config.model.dtype=bfloat16 "$@" "--json=$json"
}

step() { # CONFIG BATCH LENGTH ARGUMENTS...
  local count=(--steps=100 --warmup=20)
  [ -z "${TOY:-}" ] || count=(--steps=4 --warmup=1)
  run_config step.py "$@" "${count[@]}"
}

overheads() { # CONFIG BATCH LENGTH PAIRS
  local pairs=$4
  [ -z "${TOY:-}" ] || pairs=4
  run_config overheads.py "$1" "$2" "$3" "--pairs=$pairs"
}

random_numbers() { # SIZES...
  [ -z "${TOY:-}" ] || set -- --rows=2 --slots=4 --rounds=2
  run random_numbers.py "$@" --dtype=bfloat16 "--json=$json"
}

attention() { # SIZES...
  [ -z "${TOY:-}" ] || set -- --batch=2 --length=32 --layers=1 --rounds=2
  run attention.py "$@" --dtype=bfloat16 "--json=$json"
}

gpu=$(command -v nvidia-smi || true)
no_attention_dropout=--config.model.attention_dropout=0.0

# --- pieces -------------------------------------------------------------------

run_piece() {
  local size flag name
  case $1 in
    correct)
      local sizes=()
      [ -z "${TOY:-}" ] || sizes=(--rows=2 --slots=4 --width=32 --chunk=4)
      run random_numbers.py --check
      run agreement.py "${sizes[@]}" "--json=$json"
      run agreement.py "${sizes[@]}" --dtype=float32 "--json=$json"
      attention --batch=32 --length=512 --heads=12
      attention --batch=128 --length=128 --heads=4
      run meshes.py --config=electra_small:hc,runlocal
      ;;
    resume) # at a small size, as deterministic sums are slow on a GPU
      XLA_FLAGS="${gpu:+--xla_gpu_deterministic_ops=true}${XLA_FLAGS:+ $XLA_FLAGS}" \
        run resume.py --config=electra_small:hc,runlocal --steps=15 \
        "--workdir=$(dirname "$json")/resume"
      ;;
    base) # first the batch that `make h100` compiles
      step electra_base:hc 32 512
      step electra_base:baseline 128 512
      ;;
    small)
      step electra_small:hc 128 128
      for size in 512 1024; do step electra_small:baseline "$size" 128; done
      ;;
    bert)
      step bert_base:hc 32 512
      step bert_base:baseline 128 128
      for size in 128 512; do
        step bert_large:baseline 128 "$size" --config.optim.accumulation=2
      done
      ;;
    overheads) overheads electra_base:baseline 128 512 200 ;;
    overheads-small) overheads electra_small:baseline 128 128 2000 ;;
    attention) # what the fused kernel gains, and what its dropout costs
      for name in xla auto; do
        step electra_base:baseline 32 512 --config.model.attention=$name
        step electra_base:baseline 32 512 --config.model.attention=$name \
          "$no_attention_dropout"
      done
      ;;
    dropout)
      random_numbers --rows=128
      random_numbers --rows=128 --length=512 --width=768 --heads=12 --slots=77
      step electra_base:baseline 128 512 "$no_attention_dropout" \
        --config.model.dropout=0.0
      step electra_small:baseline 128 128 "$no_attention_dropout" \
        --config.model.dropout=0.0
      ;;
    large)
      step electra_large:baseline 128 512 --config.optim.accumulation=2
      ;;
    batches)
      step electra_base:baseline 64 512
      step electra_base:baseline 256 512 --config.optim.accumulation=2
      step electra_small:baseline 256 128
      step electra_small:baseline 2048 128
      ;;
    # A flag is useful if it gains more than the difference between the first
    # and the last run, which have no flag.
    flags)
      for flag in "" --xla_gpu_enable_triton_gemm=false \
        --xla_gpu_cudnn_gemm_fusion_level=1 --xla_gpu_enable_command_buffer= \
        --xla_gpu_enable_latency_hiding_scheduler=true ""; do
        XLA_FLAGS=$flag step electra_small:baseline 128 128
      done
      ;;
  esac
}

# --- command line -------------------------------------------------------------

requested=() failed=0
for word in "$@"; do
  case $word in
    --json=*) json=$(realpath -m "${word#--json=}") ;;
    all) requested+=("${pieces[@]}") ;;
    *) requested+=("$word") ;;
  esac
done
for name in "${requested[@]:?Pass a piece, wheels, all or table.}"; do
  [[ " wheels table ${pieces[*]} " = *" $name "* ]] || {
    echo "error: '$name' is unknown. Choose wheels, table, all or pieces of:" \
      "${pieces[*]}." >&2
    exit 2
  }
done

[ "${requested[0]}" != wheels ] || { fetch_wheels; exit; }
prepare
for name in "${requested[@]}"; do
  [ "$name" != table ] || continue
  began=$SECONDS
  echo "=== $name"
  print_clocks
  run_piece "$name"
  echo "=== $name took $((SECONDS - began)) s"
done
# The piece resume has no figures.
[[ ${requested[*]} = resume && ! -e $json ]] ||
  "$python" "$root/benchmarks/figures.py" "$json" || failed=1
exit "$failed"
