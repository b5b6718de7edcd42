# What makes `conda activate` a function of the shell, as conda's own file does.
conda() {
    if [ "$1" = activate ]; then
        export CONDA_DEFAULT_ENV=${2:-base}
    else
        command conda "$@"
    fi
}
