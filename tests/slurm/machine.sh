#!/bin/bash
# Process 1 of a machine of the test cluster (see machine.py); its end is the end of all that runs on the machine.
set -eu
. "${BASH_SOURCE[0]%/*}/network.sh"
: "$ROOT" "$NAME" "$ROLE" "$ADDRESS" "$GATEWAY" "$SWITCH" "$CABLE" "$OWN_FOLDERS" "$KEPT_FOLDERS"
exec 2>>"$ROOT/log/$NAME.boot"

# Folders that belong to this machine alone, as a node's local disk does; what all machines share stays in its place.
mapfile -t shared < <(printf %s "$KEPT_FOLDERS")
mapfile -t private < <(printf %s "$OWN_FOLDERS")
handles=()
for kept in "${shared[@]}"; do
    exec {handle}<"$kept"
    handles+=("$handle:$kept")
done
for own in "${private[@]}"; do
    mkdir -p "$ROOT/disk/$NAME$own"
    chmod --reference="$own" "$ROOT/disk/$NAME$own"
    chmod a+x "$ROOT/disk/$NAME$own"
    mount --bind "$ROOT/disk/$NAME$own" "$own"
done
for entry in "${handles[@]}"; do
    handle=${entry%%:*} kept=${entry#*:}
    mkdir -p "$kept"
    # Not canonicalised: the folder behind the open handle is meant, no longer what its name leads to.
    mount --no-canonicalize --bind "/proc/self/fd/$handle" "$kept"
    exec {handle}<&-
done
mount -t tmpfs -o mode=1777 shm /dev/shm
for file in hosts nsswitch.conf passwd group; do mount --bind "$ROOT/etc/$file" "/etc/$file"; done

join_network "$NAME"

answers() { until (: <"/dev/tcp/$ADDRESS/$1") 2>/dev/null; do sleep 0.02; done; }

database() {
    local data=$ROOT/run/database
    mkdir -p "$data"
    mount -t tmpfs database "$data" # three seconds faster than a disk
    mkdir "$data/mysql"
    local server=(mariadbd --no-defaults --user=root "--datadir=$data" --skip-grant-tables
        --innodb-buffer-pool-size=64M --innodb-log-file-size=16M --innodb-flush-log-at-trx-commit=0)
    { echo 'use mysql;' && cat /usr/share/mysql/mysql_system_tables.sql; } |
        "${server[@]}" --bootstrap >>"$ROOT/log/database.log" 2>&1
    "${server[@]}" "--bind-address=$ADDRESS" "--socket=$ROOT/run/database.sock" >>"$ROOT/log/database.log" 2>&1 &
    answers 3306
    slurmdbd
    answers 6819
}

case $ROLE in
controller)
    munged --force "--key-file=$ROOT/etc/munge.key" "--socket=$ROOT/run/munge.sock" \
        "--seed-file=$ROOT/run/munge.seed" "--pid-file=$ROOT/run/munged.pid" "--log-file=$ROOT/log/munged.log"
    [ ! -e "$ROOT/etc/slurmdbd.conf" ] || database
    slurmctld
    answers 6817
    touch "$ROOT/run/controller-answers"
    ;;
compute)
    # A node that registers before the controller listens tries again only a second later.
    until [ -e "$ROOT/run/controller-answers" ]; do sleep 0.02; done
    slurmd -N "$NAME"
    ;;
esac
touch "$ROOT/run/$NAME.up"

# bash reaps what is orphaned here, as an init does.
while :; do
    sleep infinity &
    wait "$!" || :
done
