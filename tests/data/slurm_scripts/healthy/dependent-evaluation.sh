#!/bin/bash
#SBATCH --job-name=train-then-score
#SBATCH --time=11:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=2
#SBATCH --gpus-per-node=2
#SBATCH --output=score-%j.log

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

set -uo pipefail
export MASTER_ADDR=$(hostname)
export MASTER_PORT=$((27000 + SLURM_JOB_ID % 2000))

srun bash -c 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID python train_ranker.py'
code=$?

if (( code == 0 )); then
    echo "trained; the scores come next"
    python plot_scores.py --run latest || echo "no plot" >&2
fi
exit $code
