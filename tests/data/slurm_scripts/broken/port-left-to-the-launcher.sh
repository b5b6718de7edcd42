#!/bin/bash
#SBATCH -J bloomz
#SBATCH -N 1
#SBATCH -n 1
#SBATCH --gres=gpu:2
#SBATCH -t 8:00:00
#SBATCH -o bloomz-%j.log

echo "start: $(date)"
echo "host: $(hostname), job: $SLURM_JOB_ID"

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

umask 027

source ~/envs/ds/bin/activate
deepspeed --num_gpus=2 train_bloomz.py --deepspeed_config z2.json
