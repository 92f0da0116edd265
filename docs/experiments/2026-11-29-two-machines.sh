#!/usr/bin/env bash
# usage, as root, from the project's folder: PYTHONPATH=. bash docs/experiments/2026-11-29-two-machines.sh FAULT
# Two network namespaces with two ranks each; FAULT (link, killrank, killlauncher0 or killlauncher1) befalls one.
set -eu
export ALBERT_JOB_KEY=any GLOG_v=3
fault=$1 out=$(mktemp -d)
for machine in 0 1; do
    ip netns add "machine$machine"
    ip -n "machine$machine" link set lo up
    mkdir "$out/$machine"
done
trap 'ip netns delete machine0; ip netns delete machine1' EXIT
ip link add cable0 netns machine0 type veth peer name cable1 netns machine1
pids=()
for machine in 0 1; do
    ip -n "machine$machine" address add "10.77.0.$((machine + 1))/24" dev "cable$machine"
    ip -n "machine$machine" link set "cable$machine" up
    ip netns exec "machine$machine" python scripts/launch.py --worker_num 4 --node_rank "$machine" \
        --master_addr 10.77.0.1 2 "$out/$machine" docs/experiments/2026-11-29-meet.py wait >"$out/$machine/output" 2>&1 &
    pids+=($!)
done
until grep -q "ms a meeting" "$out/0/output" && grep -q "ms a meeting" "$out/1/output"; do sleep 0.5; done
begin=$(date +%s)
case $fault in
link) ip -n machine1 link set cable1 down ;;
killrank) kill -9 "$(pgrep -P "${pids[1]}" | head -1)" ;;
killlauncher0) kill -9 "${pids[0]}" ;;
killlauncher1) kill -9 "${pids[1]}" ;;
esac
for machine in 0 1; do
    (
        while kill -0 "${pids[$machine]}" 2>/dev/null; do sleep 0.2; done
        echo "machine $machine ended after $(($(date +%s) - begin)) s: $(grep error "$out/$machine/output" | tail -1)"
    ) &
done
wait
