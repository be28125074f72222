#!/usr/bin/env bash
# A Slurm of one node on this machine, from Debian's packages slurmctld, slurmd, slurm-client and munge.
#   slurm.sh start FOLDER    start it; writes FOLDER/slurm.conf, for SLURM_CONF
#   slurm.sh stop FOLDER     end what was started
set -euo pipefail
folder=$(realpath -m "$2")

start() {
  mkdir -p "$folder"/{state,spool}
  chmod 755 "$folder"
  dd if=/dev/urandom of="$folder/munge.key" bs=1024 count=1 status=none
  chmod 600 "$folder/munge.key"
  munged --force --key-file="$folder/munge.key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
    --log-file="$folder/munge.log" --seed-file="$folder/munge.seed" --num-threads=2
  read -r controller node < <(python3 -c 'import socket
s = [socket.socket() for _ in range(2)]
[one.bind(("127.0.0.1", 0)) for one in s]
print(*(one.getsockname()[1] for one in s))')
  cat > "$folder/slurm.conf" << CONF
ClusterName=tests
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$controller
SlurmdPort=$node
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
# No control groups and no accounting: neither is needed, and a container has none.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
KillWait=5
MinJobAge=300
SchedulerParameters=sched_interval=1,bf_interval=1
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(free -m | awk '/^Mem/ {print $2 - 200}') State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  export SLURM_CONF="$folder/slurm.conf"
  slurmctld -i
  slurmd
  for _ in $(seq 100); do
    sinfo --noheader --format=%t 2> /dev/null | grep -q idle && return
    sleep 0.2
  done
  tail -n 5 "$folder"/*.log >&2
  stop
  return 1
}

stop() {
  for daemon in slurmd slurmctld munge; do
    kill "$(cat "$folder/$daemon.pid" 2> /dev/null)" 2> /dev/null || true
  done
}

"$1"
