#!/usr/bin/env bash
# Trains on all GPUs of this machine; one process drives them all.
#   1. pip install -c launch/constraints.txt '.[gpu]'
#   2. truenegs prepare --config=electra_small
#   3. launch/gpu.sh --config=electra_small --workdir=runs/small
# The export is then in runs/small/export. Arguments are passed to main, which
# is started again after exit code 75 (see common.sh). PYTHON: the Python to run,
# default python. Use 3.12 or later: the jax of older versions is slow on GPUs.
# [gpu] brings CUDA 13 and needs driver 580 (nvidia-smi prints it); with an older
# one, 525 or later, install [cuda12].
# Never run on real GPUs, only with main on a CPU and with a stand-in for main.
# shellcheck source=launch/common.sh
source "$(dirname "$0")/common.sh"
# By default jax allocates only 75 % of the memory, for shared GPUs.
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.9}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda}  # No silent fallback to the CPU.
run_to_its_end "${PYTHON:-python}" -m truenegs_jax main "$@"
exit "$code"
