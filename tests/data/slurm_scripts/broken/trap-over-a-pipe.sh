#!/bin/bash
#SBATCH -J longformer
#SBATCH -N 1
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -t 12:00:00
#SBATCH --signal=B:SIGTERM@240
#SBATCH -o longformer-%j.out

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

set -o pipefail
export MASTER_ADDR=$(hostname) MASTER_PORT=$((24000 + SLURM_JOB_ID % 4000))

trap 'echo "caught the signal"; scancel -s USR1 $SLURM_JOB_ID; wait; exit 0' TERM

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS \
    exec python train_longformer.py --max-len 4096' | tee train.log
