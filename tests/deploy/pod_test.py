"""The pods of deploy/kubernetes, run: own namespaces, PID 1, uid 10001, no capabilities, a root that cannot be written.

Run by run.sh. What a controller would fill in (names, indices, the variables of Kubeflow's operators) is filled in here.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from check_kubernetes import render, templates  # noqa: E402
from rdzv_hosts import OnHosts  # noqa: E402
from rdzv_support import BIN, poll  # noqa: E402

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"
UID = 10001


class Pods(OnHosts):
    def setUp(self):
        super().setUp()
        self.documents, self.pods = {}, []
        self.programs = self.dir / "programs"  # an image's /usr/local/bin
        self.programs.mkdir()
        for program in ("ddprun", "trainer", "ddpctl", "ddprun-rendezvous"):
            shutil.copy2(BIN / program, self.programs)
        self.checkpoints = self.dir / "checkpoints"
        self.checkpoints.mkdir()
        os.chown(self.checkpoints, UID, UID)
        self.dir.chmod(0o755)

    def load(self, folder):
        self.documents = {d["kind"]: d for d in render(pathlib.Path(folder))}
        return self.documents

    def config(self, **changes):
        folder = self.dir / "config"
        folder.mkdir(exist_ok=True)
        config = yaml.safe_load(self.documents["ConfigMap"]["data"]["train.yaml"])
        for section, values in changes.items():
            config[section] = {**config[section], **values}
        (folder / "train.yaml").write_text(yaml.safe_dump(config))
        return folder

    def names(self, *names):
        (self.dir / "hosts").write_text("127.0.0.1 localhost\n" +
                                        "".join(f"{self.hosts.ip(i)} {name}\n" for i, name in enumerate(names, 1)))

    def pod(self, host, name, kind, fields=None, variables=None, sources=None):
        """Starts the only container of `kind`'s template on a host. fields: of fieldRef; sources: of volumes."""
        _, template, _ = next(iter(templates(self.documents[kind])))
        spec = template["spec"]
        container = spec["containers"][0]
        self.assertEqual(spec["securityContext"]["runAsUser"], UID)
        env = {"PATH": "/opt/ddprun:/usr/bin:/bin", "HOME": "/", "HOSTNAME": name, "DDPRUN_TEST_TOKEN": self.token, **(variables or {})}
        for entry in container.get("env", ()):
            env[entry["name"]] = entry["value"] if "value" in entry else fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        folder = self.dir / f"pod-{name}-{len(self.pods)}"
        (folder / "root").mkdir(parents=True)
        (folder / "env").write_text("".join(f"{key}={value}\n" for key, value in env.items()))
        lines = []
        for mount in container["volumeMounts"]:
            volume = next(v for v in spec["volumes"] if v["name"] == mount["name"])
            lines.append(f"{'tmpfs' if 'emptyDir' in volume else sources[mount['name']]} {mount['mountPath']}\n")
        (folder / "volumes").write_text("".join(lines))
        command = [*container["command"], *container.get("args", ())]
        process = self.start(name + str(len(self.pods)), "unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child",
                             "--propagation", "private", SUPPORT / "pod.sh", name, folder / "root", self.programs,
                             self.dir / "hosts", folder / "volumes", UID, folder / "env", *command, prefix=self.hosts.on(host))
        self.pods.append(process)
        return process

    def pid_1(self, pod):
        children = pathlib.Path(f"/proc/{pod.pid}/task/{pod.pid}/children")
        return int(poll("the container's first process", lambda: children.read_text().split())[0])

    def job_pods(self, kind="Job"):
        self.names(*(f"train-{i}.train" for i in range(4)))
        return [self.pod(i + 1, f"train-{i}", kind, sources={"config": self.dir / "config", "checkpoints": self.checkpoints},
                         fields={"metadata.labels['batch.kubernetes.io/controller-uid']": "0f3c",
                                 "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(i)})
                for i in range(4)]

    def assert_trained(self, pods, ranks):
        for pod in pods:
            self.assertEqual(pod.wait(120), 0, pod.errors())
        words = pods[0].out.read_text()
        self.assertIn(f"{ranks} rank(s)", words)
        self.assertIn("finished after step", words)
        saved = list(self.checkpoints.glob("train/*"))
        self.assertTrue(saved, "no checkpoint was written")
        self.assertEqual({path.stat().st_uid for path in saved}, {UID})

    def test_the_job_trains(self):
        self.load("job")
        self.config()
        pods = self.job_pods()
        status = pathlib.Path(f"/proc/{self.pid_1(pods[0])}/status")
        poll("ddprun is PID 1", lambda: "Name:\tddprun\n" in status.read_text())
        text = status.read_text()
        self.assertRegex(text, r"NSpid:\t\d+\t1\n")
        self.assertIn(f"Uid:\t{UID}\t{UID}\t{UID}\t{UID}\n", text)
        self.assertIn("CapBnd:\t0000000000000000\n", text)
        self.assert_trained(pods, 4 * len(os.sched_getaffinity(0)))
        self.assertNotIn("Read-only file system", "".join(pod.errors() + pod.out.read_text() for pod in pods))

    def test_sigterm_saves_and_the_next_pods_go_on(self):
        self.load("job")
        self.config(train={"epochs": 1000})
        pods = self.job_pods()
        poll("a first checkpoint", lambda: list(self.checkpoints.glob("train/step-*")), 120)
        for pod in pods:
            os.kill(self.pid_1(pod), signal.SIGTERM)
        self.assertEqual([pod.wait() for pod in pods], [75] * 4, pods[0].errors())
        ignored = [rule for rule in self.documents["Job"]["spec"]["podFailurePolicy"]["rules"] if rule["action"] == "Ignore"]
        self.assertTrue(any(75 in rule.get("onExitCodes", {}).get("values", ()) for rule in ignored))
        again = self.job_pods()
        poll("they go on", lambda: "resumed from /checkpoints/train/step-" in again[0].out.read_text() + again[0].errors() or
             again[0].process.poll() is not None)
        self.assertIsNone(again[0].process.poll(), again[0].errors())
        for pod in again:
            os.kill(self.pid_1(pod), signal.SIGTERM)
        self.assertEqual([pod.wait() for pod in again], [75] * 4)

    def test_a_trainjob(self):
        """Kubeflow Trainer's torch plug-in gives the address of node 0 as a name."""
        self.load("trainjob")
        self.config()
        self.names(*(f"train-node-0-{i}.train" for i in range(4)))
        pods = [self.pod(i + 1, f"train-node-0-{i}", "ClusterTrainingRuntime",
                         sources={"config": self.dir / "config", "checkpoints": self.checkpoints},
                         variables={"PET_NNODES": "4", "PET_NPROC_PER_NODE": "1", "PET_NODE_RANK": str(i),
                                    "PET_MASTER_ADDR": "train-node-0-0.train", "PET_MASTER_PORT": "29400"})
                for i in range(4)]
        self.assert_trained(pods, 4)

    def test_a_pytorchjob(self):
        self.load("pytorchjob")
        self.config()
        self.names(*(f"train-worker-{i}" for i in range(4)))
        pods = [self.pod(i + 1, f"train-worker-{i}", "PyTorchJob",
                         sources={"config": self.dir / "config", "checkpoints": self.checkpoints},
                         variables={"PET_NNODES": "2:4", "PET_NPROC_PER_NODE": "1", "PET_RDZV_BACKEND": "c10d",
                                    "PET_RDZV_ENDPOINT": "train-worker-0:23456", "PET_RDZV_ID": "train", "PET_MAX_RESTARTS": "3"})
                for i in range(4)]
        self.assert_trained(pods, 4)

    def fetch(self, host, path):
        code = f"import urllib.request as u; print(u.urlopen('http://{self.hosts.ip(4)}:9400{path}', timeout=10).read().decode())"
        done = subprocess.run([*self.hosts.on(host), sys.executable, "-c", code], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None

    def test_the_standing_rendezvous(self):
        self.load("rendezvous")
        for name in ("secret", "state"):
            (self.dir / name).mkdir()
        os.chown(self.dir / "state", UID, UID)
        (self.dir / "secret/token").write_text("a secret of this test\n")
        os.chown(self.dir / "secret/token", 0, UID)  # as the kubelet does with fsGroup
        (self.dir / "secret/token").chmod(0o440)
        self.names()
        daemon = self.pod(4, "ddprun-rendezvous", "Deployment", sources={n: self.dir / n for n in ("secret", "state")})
        container = self.documents["Deployment"]["spec"]["template"]["spec"]["containers"][0]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = container[probe]["httpGet"]["path"]
            poll(f"{probe} passes", lambda p=path: self.fetch(1, p) is not None or daemon.process.poll() is not None, 30)
        self.assertIsNone(daemon.process.poll(), daemon.errors())
        # The Job of the variant, on the three other hosts.
        self.load("variants/job-daemon")
        self.config()
        (self.dir / "hosts").write_text(f"127.0.0.1 localhost\n{self.hosts.ip(4)} ddprun-rendezvous\n")
        for entry in self.documents["Job"]["spec"]["template"]["spec"]["containers"][0]["env"]:
            if entry["name"] == "PET_NNODES":
                entry["value"] = "3"
        pods = [self.pod(i + 1, f"train-{i}", "Job", sources={"config": self.dir / "config", "checkpoints": self.checkpoints},
                         fields={"metadata.labels['batch.kubernetes.io/controller-uid']": "0f3c",
                                 "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(i)})
                for i in range(3)]
        self.assert_trained(pods, 3 * len(os.sched_getaffinity(0)))
        self.assertRegex(self.fetch(1, "/metrics"), re.compile(r"^ddprun_\w+", re.M))
        os.kill(self.pid_1(daemon), signal.SIGTERM)
        self.assertEqual(daemon.wait(), 0, daemon.errors())


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    bad, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - bad - skipped} passed, {bad} failed, {skipped} skipped")
    sys.exit(1 if bad else 0)
