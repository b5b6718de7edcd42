#!/bin/bash
#SBATCH --job-name=pair
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=3:00:00
#SBATCH --output=pair-%j.log

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

hosts=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
port=$((15000 + SLURM_JOB_ID % 15000))
for i in 0 1; do
    srun --nodes=1 --ntasks=1 --nodelist="${hosts[$i]}" \
        torchrun --nnodes=2 --nproc_per_node=2 --node_rank=$i \
        --master_addr=${hosts[0]} --master_port=$port train_pair.py &
done
