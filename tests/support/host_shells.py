"""Remote shells to hosts in network namespaces: a script that enters the namespace, and a real sshd on each host."""
import os
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from rdzv_hosts import OnHosts  # noqa: E402
from rdzv_support import BIN, poll, running  # noqa: E402

# ssh's manner: HOST COMMAND, the command goes to a shell. The host has its own name, too.
ENTER = """#!/bin/sh
host=$1; shift
ns=$(grep "^$host " "$(dirname "$0")/spaces" | cut -d' ' -f2)
[ -n "$ns" ] || { echo "enter: no route to $host" >&2; exit 255; }
exec nsenter --net="/run/netns/$ns" unshare --uts sh -c 'hostname "$1"; shift; exec sh -c "$*"' sh "$ns" "$@"
"""


class HostShells(OnHosts):
    """Four hosts. starter() runs ddprun on one of them with a list of hosts."""

    def setUp(self):
        super().setUp()
        self.rsh = self.dir / "enter"
        self.rsh.write_text(ENTER)
        self.rsh.chmod(0o755)
        (self.dir / "spaces").write_text("".join(f"{self.hosts.ip(i)} {self.hosts.ns(i)}\n" for i in range(1, 5)))
        self.daemons = set()

    def list_of(self, *hosts, slots=None):
        return ",".join(self.hosts.ip(i) + (f":{slots}" if slots else "") for i in hosts)

    def starter(self, *words, on=4, name="starter", rsh=None, prefix=(), **env):
        """on: the host that it runs on; None: this machine itself."""
        return self.start(name, BIN / "ddprun", f"--rsh={rsh or self.rsh}", *words,
                          prefix=(*(self.hosts.on(on) if on else ()), *prefix), **env)

    def worker_words(self):
        return ("--no-python", "python3", self.dir / "worker.py", self.dir)

    def pids_on(self, i):
        """What runs on a host, without the daemons of the test."""
        pids = self.hosts._do("ip", "netns", "pids", self.hosts.ns(i), check=False).stdout.split()
        return {int(pid) for pid in pids if running(int(pid))} - self.daemons

    def words_on(self, i):
        found = {}
        for pid in self.pids_on(i):
            try:
                found[pid] = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                pass
        return found

    def assert_hosts_empty(self, *hosts, limit=20):
        try:
            poll("nothing runs on the hosts", lambda: not any(self.pids_on(i) for i in hosts), limit)
        except AssertionError as error:
            raise AssertionError(f"{error}: { {i: self.words_on(i) for i in hosts} }") from None

    def last_line(self, process):
        return process.errors().splitlines()[-1]


class SshHosts(HostShells):
    """The same with a real sshd on hosts 1 to 3, on a port of its own, with keys of its own."""

    SSH_PORT = 2222

    def setUp(self):
        sshd = "/usr/sbin/sshd"
        if not os.path.exists(sshd) or shutil.which("ssh") is None:
            self.skipTest("needs openssh-server and openssh-client")
        super().setUp()
        os.makedirs("/run/sshd", exist_ok=True)
        for key in ("host_key", "user_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.dir / key], check=True)
        public = (self.dir / "host_key.pub").read_text().split()
        (self.dir / "known_hosts").write_text("".join(
            f"[{self.hosts.ip(i)}]:{self.SSH_PORT} {public[0]} {public[1]}\n" for i in range(1, 5)))
        (self.dir / "sshd_config").write_text(f"""
Port {self.SSH_PORT}
HostKey {self.dir}/host_key
AuthorizedKeysFile {self.dir}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
MaxStartups 100
""")
        for i in (1, 2, 3):
            daemon = self.start(f"sshd{i}", sshd, "-D", "-e", "-f", self.dir / "sshd_config",
                                prefix=("nsenter", f"--net=/run/netns/{self.hosts.ns(i)}", "unshare", "--uts", "sh", "-c",
                                        'hostname "$1"; shift; exec "$@"', "sh", self.hosts.ns(i)))
            poll(f"sshd on host {i}", lambda d=daemon: "Server listening" in d.errors() or d.process.poll() is not None)
            self.assertIsNone(daemon.process.poll(), daemon.errors())
            self.daemons.add(daemon.pid)

    def ssh(self, *more):
        return " ".join(["ssh -F none -T -o BatchMode=yes -o ConnectTimeout=10", f"-p {self.SSH_PORT}",
                         f"-i {self.dir}/user_key", f"-o UserKnownHostsFile={self.dir}/known_hosts",
                         "-o GlobalKnownHostsFile=none -o StrictHostKeyChecking=yes", *more])

    def starter(self, *words, rsh=None, **more):
        return super().starter(*words, rsh=rsh or self.ssh(), **more)
