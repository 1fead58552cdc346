#!/usr/bin/env bash
#SBATCH --job-name=truenegs --nodes=1 --ntasks-per-node=1 --gpus-per-node=1
#SBATCH --requeue --open-mode=append --signal=B:TERM@120
# Trains on the GPUs of a Slurm job, a process for each GPU: jax, when it finds
# Slurm, gives every process of a node one device.
#   sbatch --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 --cpus-per-task=8 \
#     launch/slurm.sh --config=configs/electra_base.py --workdir=runs/base
# All arguments go to main; PYTHON and what it needs: see gpu.sh. Before, once,
#   python -m truenegs_jax.prepare --config=configs/electra_base.py
# makes the rows. All nodes must see them (TRUENEGS_CACHE) and the workdir. Exit
# code 75, as after the TERM two minutes before the time is up, queues the job
# again; any other ends it. scancel --batch --signal=INT JOB: saves, ends it.
# Not run on a real Slurm: only with stand-ins for srun and scontrol.
set -euo pipefail
[ "${SLURM_NTASKS_PER_NODE:-1}" = "${SLURM_GPUS_ON_NODE:-1}" ] ||
  { echo "error: --ntasks-per-node must equal --gpus-per-node" >&2; exit 2; }
export XLA_PYTHON_CLIENT_MEM_FRACTION=${XLA_PYTHON_CLIENT_MEM_FRACTION:-.9}
export JAX_PLATFORMS=${JAX_PLATFORMS:-cuda}  # Never the CPU, silently.
# Since Slurm 22.05 srun does not take it over from sbatch.
export SRUN_CPUS_PER_TASK=${SRUN_CPUS_PER_TASK:-${SLURM_CPUS_PER_TASK:-1}}

signals=0 again=yes
# shellcheck disable=SC2329  # Traps call it.
pass_on() {  # As TERM: srun keeps an INT to itself.
  signals=$((signals + 1)) again=$1
  kill "$!" || :
}
# The others wait for the first process, which exports at the end.
srun --wait=0 --kill-on-bad-exit=0 \
  "${PYTHON:-python}" -m truenegs_jax.main "$@" &
trap 'pass_on yes' TERM
trap 'pass_on no' INT
seen=-1  # A signal ends `wait` early.
until [ $seen = $signals ]; do seen=$signals code=0; wait $! || code=$?; done
# A job that was cancelled is not RUNNING any more, and stays so.
[ "$code$again" != 75yes ] || case $(scontrol show job "$SLURM_JOB_ID") in
  *JobState=RUNNING*) scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
