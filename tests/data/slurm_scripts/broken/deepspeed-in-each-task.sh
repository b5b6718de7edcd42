#!/bin/bash
#SBATCH --job-name=ds-chat
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=1-00:00:00
#SBATCH --output=dschat-%j.log

umask 027

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

source ~/envs/ds/bin/activate
hosts=$PWD/hosts.$SLURM_JOB_ID
for h in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do echo "$h slots=2"; done >"$hosts"

srun deepspeed --hostfile "$hosts" --master_port $((15000 + SLURM_JOB_ID % 15000)) \
    train_chat.py --step 3 --deepspeed_config ds.json
