#!/bin/bash
#SBATCH --job-name=forecast
#SBATCH --ntasks=1
#SBATCH --gres=gpu:1
#SBATCH --output=forecast-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

case $(uname -m) in
x86_64) arch=x86 ;;
aarch64) arch=arm ;;
*) arch=other ;;
esac
echo "architecture: $arch"

checks=0
while [ $checks -lt 3 ] && [ ! -w "$PWD" ]; do
    sleep 1
    checks=$((checks + 1))
done

source ~/envs/ts/bin/activate
python train_forecast.py --horizon 96 --model patchtst
