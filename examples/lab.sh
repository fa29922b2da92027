#!/bin/sh
# A lab on one machine, in namespaces that end with it: nothing outside is touched.
#
#   examples/lab.sh              a shell in the lab
#   examples/lab.sh COMMAND...   a command in it
#
#   host a            the box, where you are          host b
#   10.0.0.1  ------  eth1            eth2  ------  10.0.0.2, 198.51.100.7
#   host c                                            host d
#   10.0.1.1  ------  eth3 -- br0 --- eth4  ------  10.0.1.2
#
# A second terminal of the lab: tmux -S /run/tmux, inside of it. Another examples/lab.sh
# is another lab.
#
# "a COMMAND" runs a command on host a, and so do b, c and d. Between eth1 and eth2
# there is nothing until quillon runs there. Host a reaches 198.51.100.0/24 over its
# only link.
set -e
if [ "$1" != --inside ]; then
	[ "$(id -u)" = 0 ] || { echo "lab.sh: needs root, to make namespaces: sudo $0" >&2; exit 2; }
	exec unshare --mount --net --pid --fork --kill-child --mount-proc "$0" --inside "$@"
fi
shift

mount -t tmpfs lab /run
export XDG_STATE_HOME=/run/state
export PATH="/run/hosts:$(cd "$(dirname "$0")/.." && pwd)/bin:$PATH"
mkdir /run/hosts
ip link set lo up
n=0
for host in a b c d; do
	n=$((n + 1))
	cat >/run/hosts/$host <<-EOF
		#!/bin/sh
		exec ip netns exec $host "\$@"
	EOF
	chmod +x /run/hosts/$host
	ip netns add $host
	ip link add eth$n type veth peer name eth0 netns $host
	echo 1 >/proc/sys/net/ipv6/conf/eth$n/disable_ipv6 2>/dev/null || true
	ip link set eth$n up
	ip -netns $host link set lo up
	ip -netns $host link set eth0 up
done
ip link add br0 up type bridge
ip link set eth3 master br0
ip link set eth4 master br0
ip -netns a address add 10.0.0.1/24 dev eth0
ip -netns b address add 10.0.0.2/24 dev eth0
ip -netns b address add 198.51.100.7/24 dev eth0
ip -netns c address add 10.0.1.1/24 dev eth0
ip -netns d address add 10.0.1.2/24 dev eth0
ip -netns a route add 198.51.100.0/24 dev eth0
if [ $# -gt 0 ]; then
	exec "$@"
fi
if command -v bash >/dev/null; then # for its history, which is not kept
	PS1='lab# ' HISTFILE= exec bash --norc
fi
PS1='lab# ' exec sh
