#!/bin/bash
#SBATCH -J coder
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH -t 2-00
#SBATCH -o coder-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

pick_port() { echo $((15000 + SLURM_JOB_ID % 15000)); }
export ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$(pick_port)

cat > n-$SLURM_JOB_ID.sh <<'EOF'
torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d \
    --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$ADDR:$PORT train_coder.py
EOF
srun bash n-$SLURM_JOB_ID.sh
