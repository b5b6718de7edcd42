#!/bin/bash
# Makes the namespaces it was started in those of a pod (see pod.py), and becomes the container's first process.
set -eu
. "${BASH_SOURCE[0]%/*}/../slurm/network.sh"
: "$FOLDER" "$HOST_NAME" "$ADDRESS" "$GATEWAY" "$SWITCH" "$CABLE" "$HIDDEN" "$KEPT" "$MOUNTS"

# The container's root: what an image would hold is this machine's, but for folders that no other user may pass.
root=$FOLDER/root
mount -t tmpfs -o mode=755 root "$root"
for entry in /*; do
    if [ -L "$entry" ]; then
        cp -a "$entry" "$root"
    elif [ -d "$entry" ] && [ "$entry" != /proc ]; then
        mkdir "$root$entry"
        mount --rbind "$entry" "$root$entry"
    fi
done
mkdir "$root/proc"
mount -t proc proc "$root/proc"
while read -r folder; do
    mount -t tmpfs -o mode=1777 hidden "$root$folder"
done <<<"$HIDDEN"
while read -r folder; do
    [ -n "$folder" ] || continue
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done <<<"$KEPT"
mount --bind "$FOLDER/hosts" "$root/etc/hosts"
mount --bind "$FOLDER/nsswitch.conf" "$root/etc/nsswitch.conf"

# Volumes: SOURCE PATH, or tmpfs:SIZE PATH.
while read -r source path; do
    [ -n "$source" ] || continue
    mkdir -p "$root$path"
    case $source in
    tmpfs:*) mount -t tmpfs -o "mode=1777,size=${source#tmpfs:}" volume "$root$path" ;;
    *) mount --bind "$source" "$root$path" ;;
    esac
done <<<"$MOUNTS"

join_network "$HOST_NAME"

# Words that follow: how to become the user, and the command with its environment.
exec chroot "$root" "$@"
