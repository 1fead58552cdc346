#!/usr/bin/env bash
#SBATCH --job-name=truenegs --nodes=1 --ntasks-per-node=1 --gpus-per-node=1
#SBATCH --requeue --open-mode=append --signal=B:TERM@120
# Trains on the GPUs of a Slurm job, one process per GPU: under Slurm jax gives
# each process of a node one device. In this folder, which all nodes must see:
#   1. python3.12 -m venv .venv && . .venv/bin/activate &&
#        pip install -c launch/constraints.txt '.[gpu]'
#   2. export TRUENEGS_CACHE=/shared/cache  # rows and compiled programs
#      srun --cpus-per-task=16 truenegs prepare --config=electra_base
#   3. sbatch --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 --cpus-per-task=8 \
#        launch/slurm.sh --config=electra_base --workdir=/shared/base
# The export is then in /shared/base/export. Arguments are passed to main; for
# PYTHON see gpu.sh. After exit code 75, as from the TERM two minutes before the
# time limit, the job is requeued; other codes end it. Save and end:
#   scancel --batch --signal=INT JOB
# Never run on a real Slurm, only with stand-ins for srun, scancel and scontrol.

# Slurm runs a copy of this file, which is in another folder.
# shellcheck source=launch/common.sh
source "${SLURM_SUBMIT_DIR:?Start it with sbatch.}/launch/common.sh" || {
  echo "error: $SLURM_SUBMIT_DIR has no launch/common.sh. Run sbatch in the" \
    "repository's folder." >&2
  exit 2
}
[ "${SLURM_NTASKS_PER_NODE:-1}" = "${SLURM_GPUS_ON_NODE:-1}" ] || fail \
  "--ntasks-per-node differs from --gpus-per-node. Pass the same number to both."
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.9}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda}  # No silent fallback to the CPU.
# Since Slurm 22.05 srun does not inherit it from sbatch.
export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-1}}

requeue=yes
# shellcheck disable=SC2329  # common.sh calls it.
send_signal() {  # Always TERM, to all tasks; srun would kill them for it.
  [ "$1" = TERM ] || requeue=no
  scancel --signal=TERM "$SLURM_JOB_ID"
}
# A cancelled job is not RUNNING any more and must not be requeued.
trap '[ "$?$requeue" != 75yes ] ||
  case $(scontrol show job "$SLURM_JOB_ID") in
    *JobState=RUNNING*) scontrol requeue "$SLURM_JOB_ID" ;;
  esac' EXIT

main=("${PYTHON:-python}" -m truenegs_jax main)
run_flags() {
  # The other processes have to wait for the first, which exports at the end.
  run_once srun --wait=0 --kill-on-bad-exit=0 "${main[@]}" "$@"
}
run_main "$@"
