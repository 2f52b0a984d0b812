"""deploy/slurm/submit_job.sh on a real Slurm: what becomes of a job whose time, nodes or patience end."""
import itertools
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from engine_case import BIN, SOURCE, EngineCase, losses, main
from engine_hosts import Hosts, Slurm, missing, wait_for

_numbers = itertools.count()
SCRIPT = str(SOURCE / "deploy" / "slurm" / "submit_job.sh")


class SlurmJobs(EngineCase):
    @classmethod
    def reason(cls):
        return missing(*Slurm.PROGRAMS)

    def setUp(self):
        """A cluster of its own: hosts are lost here."""
        super().setUp()
        self.place = self.folder / f"j{next(_numbers)}"  # short: munge's socket is in it
        self.place.mkdir()
        self.hosts = Hosts(3, self.place)
        self.slurm = Slurm(self.hosts)
        self.addCleanup(self.slurm.stop)
        self.hosts.up()
        self.slurm.start()
        text = (self.folder / "short.yaml").read_text().replace("epochs: 2", "epochs: 2000")
        (self.place / "train.yaml").write_text(text + "checkpoint: {dir: saved, every_steps: 50}\nddp: {timeout_s: 4}\n")

    def submit(self, nodes, *settings, workers=1):
        env = {"NGPUS": str(workers), "CONFIG": "train.yaml", "DDPRUN": str(BIN / "ddprun")}
        words = ["sbatch", "--parsable", f"--nodes={nodes}", "--cpus-per-task=1", "--gpus-per-node=0", "--time=30",
                 "--output=job.out", SCRIPT, *settings]
        done = self.slurm.run(*words, env=env)
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout)

    def log(self):
        try:
            return (self.place / "job.out").read_text(errors="replace")
        except OSError:
            return ""

    def trains(self, epoch=3):
        wait_for("training", lambda: re.search(rf"epoch {epoch}/", self.log()), 60)

    def ends(self, job, state, seconds=60):
        try:
            wait_for(f"{job} is {state}", lambda: self.slurm.job(job, "JobState") == state, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}, but {self.slurm.job(job, 'JobState')}:\n{self.log()}") from None

    def test_a_warning_saves_and_queues_again_but_scancel_does_not(self):
        job = self.submit(2)
        self.trains()
        self.slurm.run("scancel", "--batch", "--signal=USR1", str(job))
        wait_for("it resumes", lambda: "resumed from saved" in self.log(), 60)
        self.assertEqual(self.slurm.job(job, "Restarts"), "1")
        self.assertIn(f"rdzv-id=slurm-{job}.0.1", self.log())
        self.slurm.run("scancel", str(job))
        self.ends(job, "CANCELLED")
        wait_for("every node has saved", lambda: self.log().count("ended with 75") >= 4, 30)
        for _ in range(30):  # a second life would begin within two turns of the scheduler
            self.assertEqual(self.slurm.job(job, "JobState"), "CANCELLED")
            time.sleep(0.1)

    def test_a_lost_node_is_no_failure(self):
        job = self.submit(3, "train.epochs=600")
        self.trains()
        self.hosts.cut(3)
        self.ends(job, "COMPLETED", 110)
        self.assertEqual(self.slurm.job(job, "ExitCode"), "0:0")
        self.assertIn("TCP ring, 2 ranks", self.log())

    def test_a_suspended_job_loses_nothing(self):
        job = self.submit(2, "train.epochs=600", workers=2)  # over shared memory and TCP
        self.trains()
        self.slurm.run("scontrol", "suspend", str(job))
        wait_for("it is suspended", lambda: self.slurm.job(job, "JobState") == "SUSPENDED")
        time.sleep(9)  # longer than a collective may take: the one thing that cannot be polled for
        self.slurm.run("scontrol", "resume", str(job))
        self.ends(job, "COMPLETED", 90)
        self.assertNotIn("timed out", self.log())
        self.assertNotIn("resumed from", self.log())
        self.assertEqual(len(losses(self.log())), 600)

    def test_when_the_first_node_is_lost_the_others_queue_the_job_again(self):
        # Not by Slurm's own hand: it takes the job for a running one.
        text = pathlib.Path(SCRIPT).read_text().replace("join_timeout=60", "join_timeout=10,keep_alive_interval=1")
        script = self.place / "submit_job.sh"
        script.write_text(text)
        globals()["SCRIPT"], before = str(script), SCRIPT
        try:
            job = self.submit(2, "train.epochs=100000")
        finally:
            globals()["SCRIPT"] = before
        self.trains(40)
        first = self.slurm.job(job, "BatchHost")
        self.hosts.cut(int(first[len(self.hosts.name):]))
        wait_for("it resumes elsewhere", lambda: "resumed from saved" in self.log(), 110)
        self.assertEqual(self.slurm.job(job, "Restarts"), "1")
        self.assertNotEqual(self.slurm.job(job, "BatchHost"), first)


if __name__ == "__main__":
    main()
