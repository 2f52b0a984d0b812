"""Hosts that are namespaces (network, name, mounts, /dev/shm) on one bridge, and a real Slurm over them. Root only."""
import itertools
import os
import pathlib
import shutil
import signal
import subprocess
import time

ENV = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}
_numbers = itertools.count(1)


def missing(*programs):
    """Why this cannot run here; "" = it can."""
    if os.geteuid() != 0:
        return "needs root for namespaces"
    for program in ("ip", "nsenter", "unshare", *programs):
        if shutil.which(program, path=ENV["PATH"]) is None:
            return f"needs {program} (deploy/install-dependencies.sh engines)"
    probe = subprocess.run(["unshare", "--net", "--uts", "--ipc", "--mount", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else "cannot make namespaces"


def wait_for(what, condition, seconds=30.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


class Hosts:
    """NAME1..NAMEn = 10.86.X.1..n, and the hub 10.86.X.254, all with each other's names in /etc/hosts."""

    def __init__(self, count, folder):
        self.count, self.folder = count, pathlib.Path(folder)
        number = next(_numbers)
        self.name = f"eh{os.getpid() % 100000}{chr(96 + number)}"
        self.net = f"10.86.{number}"
        self.holders = {}

    def host(self, i):
        return f"{self.name}{i}"

    def address(self, i):
        return f"{self.net}.{i}"

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *words], check=True, env=ENV, capture_output=True)

    def up(self):
        lines = ["127.0.0.1 localhost", f"{self.net}.254 {self.name}hub"]
        lines += [f"{self.address(i)} {self.host(i)}" for i in range(1, self.count + 1)]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        self._hold("hub", f"{self.name}hub")
        hub = str(self.holders["hub"].pid)
        inside = ["nsenter", "-t", hub, "-n"]
        for words in (["link", "add", "br0", "type", "bridge", "forward_delay", "0"],
                      ["addr", "add", f"{self.net}.254/24", "dev", "br0"], ["link", "set", "br0", "up"],
                      ["link", "set", "lo", "up"]):
            subprocess.run([*inside, "ip", *words], check=True, env=ENV)
        for i in range(1, self.count + 1):
            self._hold(i, self.host(i))
            pid = str(self.holders[i].pid)
            subprocess.run([*inside, "ip", "link", "add", f"v{i}", "type", "veth", "peer", "name", "eth0", "netns", pid],
                           check=True, env=ENV)
            subprocess.run([*inside, "ip", "link", "set", f"v{i}", "master", "br0", "up"], check=True, env=ENV)
            own = ["nsenter", "-t", pid, "-n", "ip"]
            for words in (["link", "set", "lo", "up"], ["addr", "add", f"{self.address(i)}/24", "dev", "eth0"],
                          ["link", "set", "eth0", "up"]):
                subprocess.run([*own, *words], check=True, env=ENV)
        return self

    def _hold(self, key, host):
        ready = self.folder / f"ready.{host}"
        # unshare without --fork becomes the shell: its pid is the namespaces' own.
        script = ('hostname "$1"; mount --bind "$2" /etc/hosts; mount -t tmpfs -o mode=1777 shm /dev/shm; : >"$3"; '
                  "exec sleep infinity")
        self.holders[key] = subprocess.Popen(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "--propagation", "private", "bash", "-c", script, "_", host,
             str(self.folder / "hosts"), str(ready)], env=ENV, stdin=subprocess.DEVNULL)
        wait_for(f"namespaces of {host}", ready.exists)

    def inside(self, i):
        """Words in front of a command that is to run on host i (or "hub")."""
        return ["nsenter", "-t", str(self.holders[i].pid), "-n", "-u", "-i", "-m", "--wd=" + str(self.folder)]

    def rsh(self):
        """A program that runs `HOST COMMAND...` as ssh would."""
        path = self.folder / "rsh"
        cases = "".join(f"{self.host(i)}|{self.address(i)}) exec {' '.join(self.inside(i))} sh -c \"$*\" ;;\n"
                        for i in range(1, self.count + 1))
        path.write_text("#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nhost=$1; shift\ncase $host in\n" + cases +
                        "*) echo \"rsh: no host $host\" >&2; exit 255 ;;\nesac\n")
        path.chmod(0o755)
        return str(path)

    def cut(self, i):
        """A power cut, as others see it: the link goes, then all processes; no FIN and no RST leaves."""
        subprocess.run(["nsenter", "-t", str(self.holders["hub"].pid), "-n", "ip", "link", "set", f"v{i}", "down"],
                       check=False, env=ENV)
        self._end(i)

    def _end(self, key):
        holder = self.holders.get(key)
        if holder is None:
            return
        uts = os.readlink(f"/proc/{holder.pid}/ns/net")
        for _ in range(100):
            found = [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != holder.pid and _net(p) == uts]
            for pid in found:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            if not found:
                break
            time.sleep(0.02)
        holder.kill()
        holder.wait()
        del self.holders[key]

    def down(self):
        for key in list(self.holders):
            self._end(key)


def _net(pid):
    try:
        if pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[0] == "Z":
            return ""
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


class Slurm:
    """slurmctld and munged on the hub, a slurmd on each host; nothing outside of `folder` is written."""

    PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch")

    def __init__(self, hosts, cpus=2):
        self.hosts, self.cpus = hosts, cpus
        self.folder = hosts.folder / "slurm"
        self.conf = self.folder / "slurm.conf"
        self.children = {}
        self.env = {**ENV, "SLURM_CONF": str(self.conf)}

    def start(self):
        for name in ("run", "log", "state", "munge", "spool"):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.folder / "munge").chmod(0o700)
        self._spawn("munged", ["munged", "--foreground", "--force", f"--key-file={key}",
                               f"--socket={self.folder}/run/munge.socket", f"--pid-file={self.folder}/run/munged.pid",
                               f"--log-file={self.folder}/log/munged.log", f"--seed-file={self.folder}/munge/seed"], None)
        wait_for("munge's socket", (self.folder / "run" / "munge.socket").exists)
        self.conf.write_text(self._text())
        self._spawn("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)], "hub")
        for i in range(1, self.hosts.count + 1):
            self._spawn(i, ["slurmd", "-D", "-N", self.hosts.host(i), "-f", str(self.conf)], i)
        wait_for("all nodes are idle", lambda: self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.count("\n")
                 == self.hosts.count, 40)
        return self

    def _text(self):
        folder, count, name = self.folder, self.hosts.count, self.hosts.name
        nodes = "".join(
            f"NodeName={name}{i} NodeAddr={self.hosts.address(i)} Port=6818 CPUs={self.cpus} Boards=1 SocketsPerBoard=1 "
            f"CoresPerSocket={self.cpus} ThreadsPerCore=1 RealMemory=512 State=UNKNOWN\n" for i in range(1, count + 1))
        return f"""ClusterName=ddprun-test
SlurmctldHost={name}hub({self.hosts.net}.254)
SlurmUser=root
SlurmdUser=root
SlurmctldPort=6817
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=1
SlurmdTimeout=10
SlurmctldTimeout=15
MessageTimeout=5
KillWait=5
BatchStartTimeout=10
MinJobAge=600
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0,bf_interval=2
{nodes}PartitionName=main Nodes={name}[1-{count}] Default=YES MaxTime=INFINITE State=UP
"""

    def _spawn(self, key, words, host):
        inside = self.hosts.inside(host) if host is not None else []
        log = open(self.folder / "log" / f"{key}.out", "ab")
        self.children[key] = subprocess.Popen([*inside, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=log,
                                              stderr=log, start_new_session=True)
        log.close()

    def run(self, *words, timeout=60, env=None):
        """A client's command on the hub; its exit code is not judged."""
        return subprocess.run([*self.hosts.inside("hub"), *words], env={**self.env, **(env or {})}, timeout=timeout,
                              capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def job(self, number, field):
        text = self.run("scontrol", "show", "job", "-o", str(number)).stdout
        return dict(word.split("=", 1) for word in text.split() if "=" in word).get(field, "")

    def submit(self, *words):
        done = self.run("sbatch", "--parsable", *words)
        assert done.returncode == 0, done.stderr
        return int(done.stdout.split(";")[0])

    def stop(self):
        if "slurmctld" in self.children:
            self.run("scancel", "-u", "root")
        for child in self.children.values():
            child.terminate()
        for child in self.children.values():
            try:
                child.wait(3)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self.hosts.down()  # with it what their slurmstepd's left
