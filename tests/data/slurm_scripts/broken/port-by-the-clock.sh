#!/bin/bash
#SBATCH -J reformer
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 9:00:00
#SBATCH -o reformer-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

export HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
cat >start-$SLURM_JOB_ID.sh <<'EOF'
PORT=$((20000 + $(shuf -i 0-20000 -n 1)))
torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$SLURM_NODEID \
    --master_addr=$HOST --master_port=$PORT train_reformer.py
EOF
srun bash start-$SLURM_JOB_ID.sh
