#!/bin/bash
#SBATCH -J cyclegan
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 16:00:00
#SBATCH -o cycle-%j.log

test -d figures || mkdir figures

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

cat <<'END' >node-$SLURM_JOB_ID.sh
set -eu
ADDR=$SLURMD_NODENAME
PORT=$((15000 + SLURM_JOB_ID % 15000))
exec torchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID --nproc_per_node=2 \
    --master_addr=$ADDR --master_port=$PORT train_cyclegan.py
END
srun bash node-$SLURM_JOB_ID.sh
