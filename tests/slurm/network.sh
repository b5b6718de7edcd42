# Sourced by process 1 of a machine and of a pod.

# Take a host name, and plug this network namespace in: file handle 3 is the host's, where the cable's other end goes, into
# the switch. Its MAC address follows from the IP address: as a real machine it keeps it when it is switched off and on,
# and its neighbours, who remember it for a minute, still reach it.
join_network() {
    local mac
    printf -v mac '02:00:%02x:%02x:%02x:%02x' ${ADDRESS//./ }
    printf '%s\n' "$1" >/proc/sys/kernel/hostname
    ip link set lo up
    ip link add eth0 address "$mac" type veth peer name "$CABLE" netns /proc/self/fd/3
    nsenter --net=/proc/self/fd/3 ip link set "$CABLE" master "$SWITCH" up
    exec 3<&-
    ip addr add "$ADDRESS/24" dev eth0
    ip link set eth0 up
    ip route add default via "$GATEWAY"
}
