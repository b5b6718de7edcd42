#!/bin/bash
# Makes the namespaces it was started in those of a pod (see pod.py), and becomes the container's first process.
set -eu
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
    mkdir -p "$root$path"
    case $source in
    tmpfs:*) mount -t tmpfs -o "mode=1777,size=${source#tmpfs:}" volume "$root$path" ;;
    *) mount --bind "$source" "$root$path" ;;
    esac
done <<<"$MOUNTS"

# File handle 3 is the machine's network namespace: the cable's other end goes there, into the switch.
printf '%s\n' "$HOST_NAME" >/proc/sys/kernel/hostname
ip link set lo up
ip link add eth0 type veth peer name "$CABLE" netns /proc/self/fd/3
nsenter --net=/proc/self/fd/3 ip link set "$CABLE" master "$SWITCH" up
exec 3<&-
ip addr add "$ADDRESS/24" dev eth0
ip link set eth0 up
ip route add default via "$GATEWAY"

# Words that follow: how to become the user, and the command with its environment.
exec chroot "$root" "$@"
