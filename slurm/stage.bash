# shellcheck shell=bash disable=SC2016,SC2154,SC2174
# Functions that copy an environment to the nodes' local disks (--stage), beside those of job.bash.

# stage_environment KIND PATH FILE FOLDER PYTHON: copies an environment to the local disks once; otherwise every rank imports
# it from the shared file system. KIND is wheel, tar or folder, FILE what PATH is called below FOLDER on the nodes.
stage_environment() {
    export DSRUN_LOCAL=$4/dsrun-"$UID-$SLURM_JOB_ID"
    copy_environment "$@" &
    wait_for "$!"
    if [ "$code" -ne 0 ]; then
        clean_up
        # The copying steps have no handlers: 128 plus the number of a signal sent to them, such as by preemption.
        case $code in 138 | 143) signalled=${signalled:-a signal} ;; esac
        requeue_if_interrupted
        [ -z "$signalled" ] || exit 75
        note "the environment could not be copied to the local disks"
        exit 4
    fi
    if [ "$1" = wheel ]; then
        export PYTHONPATH="$DSRUN_LOCAL/site${PYTHONPATH:+:$PYTHONPATH}"
    else
        export PATH="$DSRUN_LOCAL/env/bin:$PATH"
    fi
}

copy_environment() {
    local source=$2
    on_all bash -c "$(declare -f make_room remove_copies); make_room \"\$1\"" dsrun-stage "$DSRUN_LOCAL" || return
    touch "$DSRUN_FAILURES/reached"
    if [ "$1" = folder ]; then
        source=$DSRUN_LOCAL/packed
        tar -C "$2" -cf "$source" . || return
    fi
    sbcast --force "$source" "$DSRUN_LOCAL/$3" || return
    [ "$1" != folder ] || rm -f "$source"
    # sbcast and tar ignore the forwarded signal.
    [ ! -e "$DSRUN_STOP_FILE" ] || return
    on_all bash -c "$(declare -f unpack); unpack \"\$@\"" dsrun-stage "$1" "$DSRUN_LOCAL/$3" "${5:-}"
}

make_room() {
    remove_copies "${1%-*}"
    # Not with -p: what another user has put there meanwhile is not taken.
    rm -rf "$1" && mkdir -p "${1%/*}" && mkdir -m 700 "$1"
}

unpack() {
    if [ "$1" = wheel ]; then
        "$3" -m pip install --quiet --no-deps --no-index --no-compile --target "$DSRUN_LOCAL/site" "$2" && rm -f "$2"
        return
    fi
    mkdir "$DSRUN_LOCAL/unpacked" && tar -C "$DSRUN_LOCAL/unpacked" -xf "$2" && rm -f "$2" || return
    # The environment may be one folder deep; conda-unpack fixes the prefixes of a conda-pack archive.
    local root
    for root in "$DSRUN_LOCAL/unpacked" "$DSRUN_LOCAL/unpacked"/*; do [ -e "$root/bin/python" ] && break; done
    [ -x "$root/bin/python" ] || { echo "dsrun: $2 contains no bin/python that runs here" >&2; return 4; }
    mv "$root" "$DSRUN_LOCAL/env" && cd "$DSRUN_LOCAL/env" || return
    [ ! -e bin/conda-unpack ] || bin/python bin/conda-unpack
}
