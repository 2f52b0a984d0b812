"""The pod of deploy/kubernetes/job in a real container, by `podman kube play`, where this host has podman and lets it work."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from check_kubernetes import render  # noqa: E402
from rdzv_support import BIN  # noqa: E402

PLAY = pathlib.Path(__file__).resolve().parents[1] / "support/podman_play.sh"


class Podman(unittest.TestCase):
    def test_a_pod_of_the_job_trains_alone(self):
        if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("podman", "crun", "unshare")):
            self.skipTest("needs root, podman and crun")
        documents = {d["kind"]: d for d in render(pathlib.Path("job"))}
        spec = documents["Job"]["spec"]["template"]["spec"]
        container = spec["containers"][0]
        # What a cluster would fill in, and what podman 4.3 does not know.
        del spec["subdomain"], container["ports"]
        container["image"] = "localhost/ddprun:test"
        container["command"] = ["/usr/local/bin/ddprun"]
        for entry in container["env"]:
            entry.pop("valueFrom", None)
            entry["value"] = {"PET_NNODES": "1", "PET_RDZV_ENDPOINT": "localhost:29400", "PET_NODE_RANK": "0",
                              "PET_RDZV_ID": "0f3c"}.get(entry["name"], entry.get("value"))
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec}
        with tempfile.TemporaryDirectory(prefix="ddprun-podman-") as work:
            play = pathlib.Path(work) / "pod.yaml"
            play.write_text(yaml.safe_dump_all([documents["ConfigMap"], pod]))
            done = subprocess.run(["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                                   "--propagation", "private", PLAY, work, BIN, play],
                                  capture_output=True, text=True, timeout=240, check=False)
        if done.returncode == 77:
            self.skipTest("podman cannot start a pod here: " + done.stderr.strip().splitlines()[-1])
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("finished after step", done.stdout)


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=2)
    result = program.result
    bad, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - bad - skipped} passed, {bad} failed, {skipped} skipped")
    sys.exit(1 if bad else 0)
