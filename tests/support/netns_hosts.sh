#!/usr/bin/env bash
# Hosts as network namespaces for tests of traffic between hosts: own network, own abstract sockets. Root only.
#   netns_hosts.sh up PREFIX N       PREFIX1..PREFIXN with addresses 10.77.0.1..N on a bridge of their own
#   netns_hosts.sh cut PREFIX I      the cable of host I is pulled (silence, no FIN, no RST)
#   netns_hosts.sh join PREFIX I     and put back
#   netns_hosts.sh down PREFIX N
# The bridge lives in a namespace too (PREFIX0), so nothing of the machine's own network is touched.
set -eu
verb=$1 prefix=$2 n=$3
case $verb in
up)
  ip netns add "${prefix}0"
  ip -n "${prefix}0" link add name hub type bridge
  ip -n "${prefix}0" link set hub up
  for i in $(seq "$n"); do
    ip netns add "$prefix$i"
    ip -n "$prefix$i" link set lo up
    ip -n "${prefix}0" link add name "port$i" type veth peer name eth0 netns "$prefix$i"
    ip -n "${prefix}0" link set "port$i" master hub up
    ip -n "$prefix$i" addr add "10.77.0.$i/24" dev eth0
    ip -n "$prefix$i" link set eth0 up
  done
  ;;
cut) ip -n "${prefix}0" link set "port$n" nomaster ;;
join) ip -n "${prefix}0" link set "port$n" master hub ;;
down) for i in $(seq 0 "$n"); do ip netns del "$prefix$i" 2>/dev/null || true; done ;;
*)
  echo "usage: netns_hosts.sh up|cut|join|down PREFIX N" >&2
  exit 2
  ;;
esac
