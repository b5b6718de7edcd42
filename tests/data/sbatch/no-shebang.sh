#SBATCH --time=1:00:00
python train.py
