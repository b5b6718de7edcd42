#!/bin/bash
#SBATCH --job-name=unwarned
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=10:00:00
#SBATCH --output=unwarned-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

save() {
    scancel --signal=USR1 "$SLURM_JOB_ID"
    wait "$step"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap save USR1

srun python train_unwarned.py &
step=$!
wait "$step"
