#!/bin/bash
#SBATCH --job-name=pde
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --time=08:00:00
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@120
#SBATCH --output=pde-%j.log

again() {
    scancel --signal=USR1 "$SLURM_JOB_ID"
    wait "$run"
    scontrol requeue "$SLURM_JOB_ID"
    exit
}
trap again USR1

srun python train_pde.py --restart auto & run=$!
wait $run
