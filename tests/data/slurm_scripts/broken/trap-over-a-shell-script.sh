#!/bin/bash
#SBATCH --job-name=stage2
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=2
#SBATCH --time=23:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --output=stage2-%j.log

on_usr1() {
    echo "saving before the time limit"
    touch stop-requested
    pkill -TERM -P $$
    wait
    scontrol requeue $SLURM_JOB_ID
}
trap on_usr1 USR1

export STAGE=2
cat >run_stage.sh <<'EOF'
exec torchrun --standalone --nproc_per_node=2 train_stage.py --watch stop-requested
EOF

bash run_stage.sh
