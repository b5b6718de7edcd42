#!/bin/bash
#SBATCH -J hyena
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=2
#SBATCH --time=04:00:00
#SBATCH -o hyena-%j.log

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
addr=$(getent hosts ${nodes[0]} | awk '{ print $1; exit }')

echo "first of ${#nodes[@]} nodes: ${nodes[0]}"
srun torchrun --nnodes=${#nodes[@]} --nproc-per-node=2 \
    --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$addr:$((21000 + SLURM_JOB_ID % 5000)) \
    --rdzv-conf "timeout=900,is_host=$( ((SLURM_PROCID == 0)) && echo 1 || echo 0 )" \
    train_hyena.py --order 2
