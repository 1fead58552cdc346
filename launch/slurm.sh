#!/usr/bin/env bash
#SBATCH --job-name=truenegs --nodes=1 --ntasks-per-node=1 --gpus-per-node=1
#SBATCH --requeue --open-mode=append --signal=B:TERM@120
# Trains on the GPUs of a Slurm job, one process per GPU: under Slurm jax gives
# each process of a node one device.
#   sbatch --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 --cpus-per-task=8 \
#     launch/slurm.sh --config=configs/electra_base.py --workdir=runs/base
# All arguments are passed to main; for PYTHON see gpu.sh. First, once:
#   python -m truenegs_jax.prepare --config=configs/electra_base.py
# All nodes need access to its rows (TRUENEGS_CACHE) and to the workdir. After
# exit code 75, as from the TERM two minutes before the time limit, the job is
# requeued; other codes end it. Save and end: scancel --batch --signal=INT JOB
# Never run on a real Slurm, only with stand-ins for srun and scontrol.
set -euo pipefail
if [ "${SLURM_NTASKS_PER_NODE:-1}" != "${SLURM_GPUS_ON_NODE:-1}" ]; then
  echo "error: --ntasks-per-node differs from --gpus-per-node. Pass the same" \
    "number to both." >&2
  exit 2
fi
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.9}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda}  # No silent fallback to the CPU.
# Since Slurm 22.05 srun does not inherit it from sbatch.
export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-1}}

signals=0 requeue=yes
# shellcheck disable=SC2329  # Traps call it.
pass_on() {  # Sends TERM in any case: srun does not pass INT on.
  signals=$((signals + 1)) requeue=$1
  kill "$!" || :
}
# The other processes have to wait for the first, which exports at the end.
srun --wait=0 --kill-on-bad-exit=0 \
  "${PYTHON:-python}" -m truenegs_jax.main "$@" &
trap 'pass_on yes' TERM
trap 'pass_on no' INT
seen=-1  # A signal interrupts `wait`, which is then called again.
until [ $seen = $signals ]; do
  seen=$signals code=0
  wait $! || code=$?
done
# A cancelled job is not RUNNING any more and must not be requeued.
if [ "$code$requeue" = 75yes ]; then
  case $(scontrol show job "$SLURM_JOB_ID") in
    *JobState=RUNNING*) scontrol requeue "$SLURM_JOB_ID" ;;
  esac
fi
exit "$code"
