"""Two jobs at one endpoint that a ddprun of the first serves: what becomes of the second when the first ends."""
import os
import pathlib
import signal
import socket
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from engine_case import BIN, EngineCase, main
from engine_hosts import wait_for

DDPRUN = str(BIN / "ddprun")


class Borrowed(EngineCase):
    def start(self, name, port, *words):
        """Workers that wait; each leaves its pid and its restart count."""
        worker = 'echo "$$ $TORCHELASTIC_RESTART_COUNT $MASTER_PORT" >>"$0.$RANK"; exec sleep 300'
        log = open(self.folder / f"{name}.log", "wb")
        one = subprocess.Popen([DDPRUN, "--nnodes=1:2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}",
                                f"--rdzv-id={name}", "--rdzv-conf=last_call_timeout=1,join_timeout=30", "--engine=none",
                                *words, "--no-python", "sh", "-c", worker, str(self.folder / name)],
                               stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        self.addCleanup(lambda: (one.poll() is None and one.send_signal(signal.SIGTERM), one.wait(20)))
        return one

    def lives(self, name, rank=0):
        try:
            return [line.split() for line in (self.folder / f"{name}.{rank}").read_text().splitlines()]
        except OSError:
            return []

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def test_the_second_job_serves_itself_when_the_first_has_gone(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        first = self.start("first", port)
        wait_for("the first job runs", lambda: self.lives("first"))
        second = self.start("second", port, "--max-restarts=2", "--shutdown-timeout=5")
        wait_for("the second job runs", lambda: self.lives("second"))
        self.assertNotIn("hosting the rendezvous", self.log("second"))
        self.assertIn("is in a launcher of another job and ends with it", self.log("second"))
        first.send_signal(signal.SIGTERM)
        first.wait(20)
        wait_for("the second job serves itself", lambda: "hosting the rendezvous" in self.log("second"))
        wait_for("it is connected again", lambda: "connected to the rendezvous again" in self.log("second"))
        self.assertEqual(len(self.lives("second")), 1, self.log("second"))  # its worker has seen nothing of it
        os.kill(int(self.lives("second")[0][0]), signal.SIGKILL)
        wait_for("a restart", lambda: len(self.lives("second")) == 2)
        self.assertEqual(self.lives("second")[1][1], "1")
        self.assertIsNone(second.poll())


if __name__ == "__main__":
    main()
