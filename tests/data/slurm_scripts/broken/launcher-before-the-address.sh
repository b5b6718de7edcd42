#!/bin/bash
#SBATCH --job-name=tr11
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=20:00:00
#SBATCH --output=%x-%j.out

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

set -e
export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node 2 --nnodes $SLURM_NNODES --node_rank \$SLURM_PROCID \
    --master_addr $MASTER_ADDR --master_port $((15000 + SLURM_JOB_ID % 15000))"
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)

CMD="pretrain_gpt.py --num-layers 30 --hidden-size 4096 --bf16"
srun bash -c "$LAUNCHER $CMD"
