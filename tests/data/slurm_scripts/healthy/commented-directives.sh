#!/bin/bash
##SBATCH --partition=debug
#SBATCH --partition=gpu          # not debug any more
#SBATCH --job-name=cleanup-demo
#SBATCH --nodes=1                # one is enough
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
#SBATCH --time=90                # minutes
# SLURM writes here:
#SBATCH --output=demo-%j.log

for v in SLURM_JOB_ID SLURM_JOB_NODELIST SLURM_JOB_NAME; do
    printf '%s=%s\n' "$v" "${!v}"
done

: "${MODEL:=tiny}"
: "${EPOCHS:=3}"

if [ "$MODEL" = tiny ]; then BATCH=64; else BATCH=16; fi

srun python -m torch.distributed.run --standalone --nproc_per_node=4 \
    demo.py --model "$MODEL" --batch $BATCH --epochs "$EPOCHS"
