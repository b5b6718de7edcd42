# Sourced by process 1 of a machine and of a pod.

# Take a host name, and plug this network namespace in: file handle 3 is the host's, where the cable's other end goes, into
# the switch.
join_network() {
    printf '%s\n' "$1" >/proc/sys/kernel/hostname
    ip link set lo up
    ip link add eth0 type veth peer name "$CABLE" netns /proc/self/fd/3
    nsenter --net=/proc/self/fd/3 ip link set "$CABLE" master "$SWITCH" up
    exec 3<&-
    ip addr add "$ADDRESS/24" dev eth0
    ip link set eth0 up
    ip route add default via "$GATEWAY"
}
