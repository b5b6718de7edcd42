#!/bin/bash
#SBATCH --job-name=tr-small
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1          # crucial: one launcher a node
#SBATCH --cpus-per-task=40
#SBATCH --hint=nomultithread
#SBATCH --gres=gpu:4
#SBATCH --time 20:00:00
#SBATCH --output=%x-%j.out
#SBATCH --account=abc@v100

set -x -e

GPUS_PER_NODE=4
NNODES=$SLURM_NNODES
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000))

TP_SIZE=2
PP_SIZE=2
OPTIMIZER_ARGS=" \
    --optimizer adam --adam-beta1 0.9 --adam-beta2 0.95 \
    --lr 6e-5 --lr-decay-style cosine --clip-grad 1.0 \
    "
MODEL_ARGS=" \
    --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
    --seq-length 2048 --max-position-embeddings 2048 \
    "

export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $NNODES \
    --master_addr $MASTER_ADDR \
    --master_port $MASTER_PORT \
    --node_rank \$SLURM_PROCID \
    "
export CMD=" \
    pretrain_gpt.py \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    $MODEL_ARGS $OPTIMIZER_ARGS \
    --save checkpoints/tr-small \
    "
echo $CMD

# Errors of a piped command count too.
set -o pipefail
srun --jobid $SLURM_JOBID --cpus-per-task=$SLURM_CPUS_PER_TASK bash -c "$LAUNCHER $CMD" 2>&1 | tee main_log.txt
