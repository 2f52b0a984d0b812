"""What a scraper sees: /metrics of a daemon with jobs in it, judged by Prometheus's own tools."""
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as older_format
from support import InteropTest

STRANGE_ID = 'we"ird\\job {run="1"} \u00e4'
SHOWN_ID = STRANGE_ID.replace("\\", "\\x5c")  # a backslash too is shown as its code, so that no two ids look alike


class Metrics(InteropTest):
    def setUp(self):
        super().setUp()
        self.daemon = self.start("ddprun-rendezvous", "--port=0", "--address=127.0.0.1", "--metrics-port=0")
        port, metrics = self.wait_until(lambda: re.search(r"serving port=(\d+) metrics_port=(\d+)", self.daemon.err),
                                        "the daemon serves").groups()
        self.url = f"http://127.0.0.1:{metrics}/metrics"
        self.endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"
        script = self.write("wait.sh", "#!/bin/sh\nexec sleep 600\n")
        os.chmod(script, 0o755)

        def node(run_id, nnodes):
            return self.start("ddprun", f"--nnodes={nnodes}", "--nproc-per-node=2", "--rdzv-backend=c10d", self.endpoint,
                              f"--rdzv-id={run_id}", "--rdzv-conf=last_call_timeout=1", script)
        # One job that runs with two nodes and a spare, one that waits, one that has ended badly.
        self.nodes = [node(STRANGE_ID, 2) for _ in range(3)] + [node("waits", "2:4")]
        failed = self.start("ddprun", "--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=c10d", self.endpoint,
                            "--rdzv-id=failed", "/bin/false").wait()
        self.assertEqual(failed.code, 1, failed)
        self.wait_until(lambda: any(n.err.count("is a spare") for n in self.nodes[:3]), "one node is a spare")
        self.wait_until(lambda: 'ddprun_job_nodes{run_id="waits"} 1' in self.scrape(), "one job waits")

    def scrape(self, accept="text/plain"):
        with urllib.request.urlopen(urllib.request.Request(self.url, headers={"Accept": accept}), timeout=60) as answer:
            return answer.read().decode()

    def values(self, families):
        return {(s.name, s.labels.get("run_id"), s.labels.get("state")): s.value for f in families for s in f.samples}

    def check_values(self, values):
        self.assertEqual(values["ddprun_job_world_size", SHOWN_ID, None], 4)
        self.assertEqual(values["ddprun_job_nodes", SHOWN_ID, None], 3)
        self.assertEqual(values["ddprun_job_nodes_by_state", SHOWN_ID, "waiting"], 1)
        self.assertEqual(values["ddprun_job_running", "waits", None], 0)
        self.assertEqual(values["ddprun_worker_failures_total", None, None], 1)

    def test_scrapes_are_clean_and_mean_what_they_say(self):
        text = self.scrape()
        promtool = os.path.join(os.path.dirname(sys.executable), "promtool")
        promtool = promtool if os.access(promtool, os.X_OK) else shutil.which("promtool")
        if promtool is None and os.environ.get("CI") != "true":
            self.skipTest("promtool could not be fetched (see the head of the run)")
        self.assertIsNotNone(promtool, "promtool could not be fetched (see the head of the run)")
        checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True, timeout=60,
                                 check=False)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""), text)
        self.check_values(self.values(older_format(text)))
        # This parser refuses what OpenMetrics 1.0 does not allow: names, order, types, escapes, the end.
        self.check_values(self.values(openmetrics(self.scrape("application/openmetrics-text; version=1.0.0"))))
        self.nodes[3].signal(signal.SIGKILL)  # its connection closes: a departure, though it never said a word
        self.wait_until(lambda: "ddprun_nodes_departed_total 1\n" in self.scrape(), "the lost node is counted")
