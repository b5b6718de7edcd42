#!/bin/bash
#SBATCH -J climate
#SBATCH -n 1
#SBATCH --gres=gpu:1
#SBATCH --time="2days"
#SBATCH -o climate-%j.log

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

umask 027

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

module load netcdf
python train_climate.py --years 1979-2015
