#!/usr/bin/env bash
# A SLURM cluster of two virtual nodes, n1 and n2, on this machine. Needs root and the packages slurm-wlm and munge.
#
#   export SLURM_CONF=$(tests/clusters/slurm.sh up /tmp/slurm)     # prints the path of slurm.conf; then sinfo, sbatch, ...
#   tests/clusters/slurm.sh node n2 /tmp/slurm                     # starts the daemon of a node again
#   tests/clusters/slurm.sh down /tmp/slurm                        # ends all daemons and removes the directory
set -euo pipefail

configure() {
  local host
  host=$(hostname -s)
  mkdir -p "$dir/state" "$dir/n1" "$dir/n2"
  chmod 755 "$dir"
  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
  cat >"$dir/slurm.conf" <<CONF
ClusterName=learner
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/%n.log
ProctrackType=proctrack/linuxproc
SelectType=select/linear
ReturnToService=2
SlurmdTimeout=20
KillWait=10
MinJobAge=600
SchedulerParameters=sched_interval=2
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=17001 CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17002 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=60 State=UP
CONF
}

up() {
  configure
  # JAX connects to the first node by its name.
  grep -q '# learner-slurm$' /etc/hosts || echo '127.0.0.1 n1 n2 # learner-slurm' >>/etc/hosts
  {
    munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" --pid-file="$dir/munged.pid" \
      --log-file="$dir/munged.log" --seed-file="$dir/munged.seed"
    slurmctld -c
    slurmd -N n1
    slurmd -N n2
  } >"$dir/start.log" 2>&1 </dev/null || { cat "$dir/start.log" >&2; exit 1; }
  for _ in $(seq 60); do
    [ "$(sinfo --noheader --format=%D --states=idle 2>/dev/null | paste -sd+)" != 2 ] || { echo "$SLURM_CONF"; return; }
    sleep 0.5
  done
  tail -n 20 "$dir"/*.log >&2
  down && exit 1
}

down() {
  local name pid
  scancel --user=root >/dev/null 2>&1 || true
  for name in slurmctld n1 n2 munged; do
    pid=$(cat "$dir/$name.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null || continue
    for _ in $(seq 40); do kill -0 "$pid" 2>/dev/null && sleep 0.25 || break; done
  done
  grep -v '# learner-slurm$' /etc/hosts >"$dir/hosts" && cat "$dir/hosts" >/etc/hosts
  rm -rf "$dir"
}

[ $# -ge 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
dir=${!#}
export SLURM_CONF=$dir/slurm.conf
case $1 in
  up) up ;;
  node) slurmd -N "$2" ;;
  down) down ;;
esac
