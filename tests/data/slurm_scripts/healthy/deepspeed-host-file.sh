#!/bin/bash
#SBATCH --job-name=bloom-ft
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=2-0
#SBATCH --output=%x.%j.log

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

export NCCL_IB_DISABLE=0
export NCCL_SOCKET_NTHREADS=4
export FI_PROVIDER=efa

set -e
source ~/envs/ds/bin/activate

hostfile=hosts-$SLURM_JOB_ID
scontrol show hostnames "$SLURM_JOB_NODELIST" | sed 's/$/ slots=4/' >"$hostfile"
cat "$hostfile"
master=$(head -n 1 "$hostfile" | cut -d ' ' -f 1)

# DeepSpeed reaches the other node by itself, over ssh.
deepspeed --hostfile "$hostfile" \
    --master_addr "$master" --master_port $((22000 + SLURM_JOB_ID % 8000)) \
    train_bloom.py --deepspeed --deepspeed_config zero2.json
