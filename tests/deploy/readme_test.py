"""Every command of deploy/README.md is run: what its user has (hosts, ssh, a batch system's file) is made first."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from host_shells import SshHosts  # noqa: E402
from rdzv_support import BIN  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = ROOT / "deploy/README.md"

TRAIN = """
import os
with open("seen." + os.environ["RANK"], "a") as f:
    print(os.environ["WORLD_SIZE"], os.environ.get("WANDB_API_KEY", ""), file=f)
"""
CONFIG = """
model: {name: mlp, hidden: [32], classes: 4}
data: {format: synthetic, samples: 512, sample_shape: [64], batch_size: 16}
loss: cross_entropy
optimizer: {name: sgd, lr: 0.05}
train: {epochs: 2}
log: {file: train.log}
"""


def boxes():
    """{heading: [text of a box]}"""
    found, heading = {}, ""
    for match in re.finditer(r"^## ([^\n]*)$|^```sh\n(.*?)^```$", README.read_text(), re.M | re.S):
        if match[1]:
            heading = match[1].strip()
        else:
            found.setdefault(heading, []).append(match[2])
    return found


def commands(box):
    """A box in commands; lines that end in a backslash go on."""
    return [line for line in box.replace("\\\n", " ").splitlines() if line.strip()]


class Readme(SshHosts):
    def setUp(self):
        super().setUp()
        self.work = self.dir / "work"
        self.work.mkdir()
        (self.work / "train.py").write_text(TRAIN)
        (self.work / "train.yaml").write_text(CONFIG)
        # Names by ssh's own configuration, which nobody but ssh knows.
        names = {name: self.hosts.ip(i) for i, name in enumerate("abc", 1)}
        (self.dir / "ssh_config").write_text("".join(
            f"Host {name}\n HostName {address}\n" for name, address in names.items()) + f"""
Host *
 Port {self.SSH_PORT}
 IdentityFile {self.dir}/user_key
 UserKnownHostsFile {self.dir}/known_hosts
 GlobalKnownHostsFile none
 BatchMode yes
""")
        ssh = self.dir / "ssh"
        ssh.write_text(f"#!/bin/sh\nexec /usr/bin/ssh -F {self.dir}/ssh_config \"$@\"\n")
        ssh.chmod(0o755)
        (self.work / "hosts").write_text("a slots=2\nb:2\nc\n")
        (self.work / "hosts.mpi").write_text("".join(address + "\n" for address in names.values()))

    def run_box(self, command, on=4, **env):
        path = f"{self.dir}:{BIN}:{os.environ['PATH']}:/usr/sbin:/sbin"
        done = subprocess.run([*self.hosts.on(on), "bash", "-euc", command], cwd=self.work, capture_output=True, text=True,
                              timeout=120, check=False, env=self.environment(PATH=path, **env))
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}\n{done.stderr}")
        return done

    def ran(self, ranks):
        """Each rank of train.py has run once, in a world of all."""
        seen = {path.name: path.read_text().split()[0] for path in self.work.glob("seen.*")}
        self.assertEqual(seen, {f"seen.{rank}": str(ranks) for rank in range(ranks)})
        words = {path.read_text().partition(" ")[2].strip() for path in self.work.glob("seen.*")}
        for path in self.work.glob("seen.*"):
            path.unlink()
        return words

    def test_every_page_with_boxes_has_a_test(self):
        mine = {method[0] for name in dir(self) if name.startswith("test_page_")
                for method in [(getattr(self, name).__doc__,)]}
        self.assertEqual(set(boxes()), mine)

    def test_page_one_host(self):
        """One host"""
        script, trainer = commands(boxes()["One host"][0])
        self.run_box(script)
        self.ran(2)
        self.assertIn("2 rank(s)", self.run_box(trainer).stdout)

    def test_page_ssh(self):
        """Several hosts by ssh"""
        first, second, third = commands(boxes()["Several hosts by ssh"][0])
        self.run_box(first)
        self.ran(4)
        self.run_box(second, WANDB_API_KEY="geheim")
        self.assertEqual(self.ran(4), {"geheim"})
        self.assertIn("6 rank(s)", self.run_box(third).stdout)

    def test_page_batch_systems(self):
        """PBS, LSF, Grid Engine"""
        script, trainer = commands(boxes()["PBS, LSF, Grid Engine"][0])
        ip = self.hosts.ip
        (self.work / "nodes").write_text(f"{ip(1)}\n{ip(1)}\n{ip(2)}\n")
        (self.work / "pe").write_text(f"{ip(1)} 2 all.q@x UNDEFINED\n{ip(2)} 1 all.q@y UNDEFINED\n")
        for variable, file in (("PBS_NODEFILE", "nodes"), ("LSB_DJOB_HOSTFILE", "nodes"), ("PE_HOSTFILE", "pe")):
            self.run_box(script, on=1, **{variable: str(self.work / file)})
            self.ran(3)
        self.assertIn("2 rank(s)", self.run_box(trainer, on=1, PBS_NODEFILE=str(self.work / "nodes")).stdout)

    def test_page_mpi(self):
        """Open MPI and MPICH"""
        for command in commands(boxes()["Open MPI and MPICH"][0]):
            if shutil.which(command.split()[0]) is None:
                self.skipTest(f"needs {command.split()[0]}")
            self.run_box(command, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                         OMPI_MCA_plm_rsh_agent=str(self.dir / "ssh"), HYDRA_LAUNCHER="ssh", HYDRA_IFACE="eth0",
                         HYDRA_LAUNCHER_EXEC=str(self.dir / "ssh"))
            self.ran(6)

    def kubectl(self):
        """No API server here: the words of apply are checked, and what it would send is rendered (check_kubernetes.py does the rest)."""
        shim = self.dir / "kubectl"
        shim.write_text(f"#!/bin/sh\n[ \"$1 $2\" = 'apply -k' ] && [ $# = 3 ] && exec {shutil.which('kubectl')} kustomize \"$3\"\n"
                        "echo \"not: $*\" >&2; exit 1\n")
        shim.chmod(0o755)
        (self.work / "deploy").mkdir()
        shutil.copytree(ROOT / "deploy/kubernetes", self.work / "deploy/kubernetes")

    def test_page_kubernetes(self):
        """Kubernetes"""
        self.kubectl()
        for box in boxes()["Kubernetes"]:
            for command in commands(box):
                documents = list(yaml.safe_load_all(self.run_box(command).stdout))
                self.assertTrue(documents)
                self.assertEqual("nvidia.com/gpu" in yaml.safe_dump_all(documents), command.endswith("-gpu"))

    def test_page_rendezvous(self):
        """A standing rendezvous"""
        self.kubectl()
        cluster, by_hand = boxes()["A standing rendezvous"]
        self.run_box(cluster)
        self.assertEqual((self.work / "deploy/kubernetes/rendezvous/token").stat().st_mode & 0o777, 0o600)
        done = self.run_box("set -m\n" + by_hand)
        self.ran(2)
        self.assertIn("job1", done.stdout)


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    bad, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - bad - skipped} passed, {bad} failed, {skipped} skipped")
    sys.exit(1 if bad else 0)
