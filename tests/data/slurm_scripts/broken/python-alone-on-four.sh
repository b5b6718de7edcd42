#!/bin/bash
#SBATCH --job-name=detr
#SBATCH --nodes=1
#SBATCH --gpus-per-node=4
#SBATCH --time=1-12:00:00
#SBATCH --output=detr-%j.log

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

test -d figures || mkdir figures

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

source ~/envs/vision/bin/activate
export CUDA_DEVICE_ORDER=PCI_BUS_ID
python -u main_detr.py --coco_path data/coco --batch_size 8 "$@"
