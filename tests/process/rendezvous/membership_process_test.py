"""The programs together on loopback: who meets whom, who lives on, who says what. See tests/support/rdzv_support.py."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
from rdzv_support import BIN, LIMIT, RendezvousTest, free_port, hello, main, poll, running  # noqa: E402

FAST = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


class Rendezvous(RendezvousTest):
    def test_daemon_restart_disturbs_nobody(self):
        port = free_port()
        daemon = self.daemon(port)
        nodes = [self.node(n, f"127.0.0.1:{port}", conf=FAST) for n in "ab"]
        before = {w["pid"] for w in self.wait_for_world(2)}
        daemon.signal(signal.SIGKILL)
        daemon.wait()
        for node in nodes:
            poll("the loss is told", lambda n=node: "broken" in n.errors())
        self.daemon(port, "daemon2")
        for node in nodes:
            poll("connected again", lambda n=node: "connected to the rendezvous again" in n.errors())
        status = json.loads(self.ctl(f"127.0.0.1:{port}", "status", "--json").stdout)["jobs"][0]
        self.assertEqual((status["state"], status["world_size"], status["round"]), ("running", 2, 1), status)
        self.assertEqual({w["pid"] for w in self.alive()}, before)
        self.end_well(*nodes)
        self.assertEqual(len(self.workers()), 2, "somebody was restarted")

    def test_daemon_told_to_stop_says_so_and_workers_run_on(self):
        port = free_port()
        daemon = self.daemon(port)
        node = self.node("a", f"127.0.0.1:{port}", nnodes="1", conf=FAST + ",close_timeout=1")
        self.wait_for_world(1)
        daemon.signal(signal.SIGTERM)
        self.assertEqual(daemon.wait(), 0, daemon.errors())
        poll("the agent was told", lambda: "the rendezvous stops" in node.errors())
        self.end_well(node)  # nobody serves any more: the exit barrier is given up after close_timeout
        self.assertEqual(len(self.workers()), 1)

    def test_flight_shows_what_came_and_names_who_is_silent(self):
        port = free_port()
        self.daemon(port)
        # No node may be lost while the daemon waits for the answer of the stopped one.
        conf = "last_call_timeout=1,keep_alive_interval=5,keep_alive_max_attempt=12"
        nodes = [self.node(n, f"127.0.0.1:{port}", conf=conf) for n in "ab"]
        self.wait_for_world(2)
        self.assertEqual(self.ctl(f"127.0.0.1:{port}", "flight", "job").returncode, 0)
        nodes[1].signal(signal.SIGSTOP)
        answer = self.ctl(f"127.0.0.1:{port}", "flight", "job")
        nodes[1].signal(signal.SIGCONT)
        self.assertEqual(answer.returncode, 1, answer)
        self.assertIn("no answer from", answer.stderr)
        self.assertRegex(answer.stdout, r"node [01] ")
        self.end_well(*nodes)

    def test_spare_takes_over_and_ends_well(self):
        port = free_port()
        self.daemon(port)
        nodes = {n: self.node(n, f"127.0.0.1:{port}", conf=FAST) for n in "ab"}
        first = self.wait_for_world(2)
        spares = [self.node(n, f"127.0.0.1:{port}", conf=FAST) for n in ("s", "t")]
        for spare in spares:
            poll("it is a spare", lambda s=spare: "spare" in s.errors())
            # Another job with this run id by mistake would look the same.
            self.assertRegex(spare.errors(), r" W ddprun rendezvous: run id 'job' already runs: .* its own --rdzv-id")
        self.assertEqual({w["pid"] for w in self.alive()}, {w["pid"] for w in first}, "a spare caused a restart")
        lost = next(w for w in first if w["rank"] == 0)
        nodes[lost["host"]].signal(signal.SIGKILL)
        second = self.wait_for_world(2, newer_than=1)
        kept = next(w for w in first if w["rank"] == 1)
        self.assertEqual({w["host"]: w["rank"] for w in second if w["host"] == kept["host"]}, {kept["host"]: 1})
        self.assertEqual({w["restart"] for w in second}, {0}, "a lost node was counted")
        self.end_well(*(n for name, n in nodes.items() if name != lost["host"]), *spares)
        self.assertEqual(sum("it was a spare and never started a worker" in s.errors() for s in spares), 1)
        self.assert_one_world_at_a_time()

    def test_failure_ends_all_nodes_with_one_root_cause(self):
        port = free_port()
        self.daemon(port)
        nodes = [self.node(n, f"127.0.0.1:{port}", nnodes="3", conf=FAST) for n in "abc"]
        self.wait_for_world(3)
        begin = time.monotonic()
        self.order("rank1", "9")
        for node in nodes:
            self.assertEqual(node.wait(), 9, node.errors())
            self.assertIn("rank 1 on ", node.errors())
            self.assertRegex(node.errors(), r"exit ?code[ :]+9")
        print(f"all ended {time.monotonic() - begin:.2f} s after the order", file=sys.stderr)
        self.assert_nothing_left(*self.processes[:1])

    def test_one_budget_for_all_nodes(self):
        port = free_port()
        self.daemon(port)
        nodes = [self.node(n, f"127.0.0.1:{port}", "--max-restarts=2", conf=FAST) for n in "ab"]
        self.wait_for_world(2)
        self.order("rank0.round1", "3")
        self.assertEqual({w["restart"] for w in self.wait_for_world(2, 1)}, {1})
        self.order("rank1.round2", "4")
        self.assertEqual({w["restart"] for w in self.wait_for_world(2, 2)}, {2})
        self.order("rank1.round3", "5")
        for node in nodes:
            self.assertEqual(node.wait(), 5, node.errors())
        self.assert_one_world_at_a_time()

    def test_early_finisher_joins_again(self):
        port = free_port()
        self.daemon(port)
        nodes = [self.node(n, f"127.0.0.1:{port}", "--max-restarts=1", conf=FAST) for n in "ab"]
        self.wait_for_world(2)
        self.order("rank0.round1", "0")
        poll("rank 0 is done", lambda: len(self.alive()) == 1)
        self.order("rank1.round1", "3")
        self.wait_for_world(2, 1)
        self.end_well(*nodes)

    def test_seventy_five_on_all_nodes_is_seventy_five(self):
        port = free_port()
        self.daemon(port)
        nodes = [self.node(n, f"127.0.0.1:{port}", conf=FAST) for n in "ab"]
        self.wait_for_world(2)
        self.order("stop", "75")
        for node in nodes:
            self.assertEqual(node.wait(), 75, node.errors())

    def test_embedded_host_leaves_with_the_others_gone(self):
        endpoint = f"127.0.0.1:{free_port()}"
        nodes = [self.node(n, endpoint, nproc=2, conf=FAST) for n in "ab"]
        world = self.wait_for_world(4)
        self.assertEqual(len({w["master"] for w in world}), 1)
        self.end_well(*nodes)
        self.assert_nothing_left()

    def test_embedded_host_killed_the_rest_stops_and_says_so(self):
        endpoint = f"127.0.0.1:{free_port()}"
        host = self.node("a", endpoint, conf=FAST + ",join_timeout=4")
        poll("it hosts", lambda: "hosting the rendezvous" in host.errors())
        other = self.node("b", endpoint, conf=FAST + ",join_timeout=4")
        self.wait_for_world(2)
        host.signal(signal.SIGKILL)
        self.assertEqual(other.wait(), 69, other.errors())
        self.assertRegex(other.errors(), r"nobody serves 127\.0\.0\.1:\d+")
        self.assert_nothing_left()

    def test_host_dies_before_the_round_and_a_waiting_node_takes_its_place(self):
        endpoint = f"127.0.0.1:{free_port()}"
        host = self.node("a", endpoint, nnodes="3", conf=FAST)
        poll("it hosts", lambda: "hosting the rendezvous" in host.errors())
        waiting = self.node("b", endpoint, nnodes="3", conf=FAST)
        poll("b waits", lambda: self.ctl(endpoint, "status").stdout.count("  waiting ") == 2)
        host.signal(signal.SIGKILL)
        others = [self.node(n, endpoint, nnodes="3", conf=FAST) for n in "cd"]
        self.wait_for_world(3)
        self.end_well(waiting, *others)

    def test_who_waits_is_told_why(self):
        port = free_port()
        self.daemon(port)
        node = self.node("a", f"127.0.0.1:{port}", nnodes="2:4")
        poll("the reason is told after ten seconds", lambda: "waiting: 1 of 2..4 nodes is here" in node.errors(), 30)
        self.assertIn("at least 1 more is needed", node.errors())
        node.signal(signal.SIGTERM)
        self.assertEqual(node.wait(), 143)

    def test_static_rank_twice_is_refused_naming_both(self):
        port = free_port()
        options = ["--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1", f"--master-port={port}",
                   "--rdzv-conf=join_timeout=4"]
        zero = self.start("zero", BIN / "ddprun", "--node-rank=0", "--nnodes=3", *options[1:], self.dir / "worker.py", self.dir)
        one = self.start("one", BIN / "ddprun", "--node-rank=1", "--nnodes=3", *options[1:], self.dir / "worker.py", self.dir)
        poll("the first is here", lambda: self.ctl(f"127.0.0.1:{port}", "status").stdout.count("  waiting ") == 2)
        twin = self.start("twin", BIN / "ddprun", "--node-rank=1", "--nnodes=3", *options[1:], self.dir / "worker.py", self.dir)
        self.assertNotEqual(twin.wait(), 0)
        self.assertRegex(twin.errors(), r"--node-rank=1 is taken by .* asks for it too")
        for node in (zero, one):
            self.assertEqual(node.wait(), 69, node.errors())
            self.assertRegex(node.errors(), r"missing: --node-rank (0, |1, )?2")

    def test_disagreement_is_refused_naming_both(self):
        port = free_port()
        daemon = self.daemon(port)
        first = self.node("a", f"127.0.0.1:{port}", nnodes="2")
        poll("a is here", lambda: "waiting" in self.ctl(f"127.0.0.1:{port}", "status").stdout)
        other = self.node("b", f"127.0.0.1:{port}", nnodes="3")
        self.assertEqual(other.wait(), 2)
        host = re.escape(socket.gethostname())
        words = rf"{host} \(node [0-9a-f]{{8}}\) says --nnodes=3, {host} \(node [0-9a-f]{{8}}\) says 2"
        self.assertRegex(other.errors(), words)
        poll("who serves says it too", lambda: re.search(rf"refused {host}: .*{words}", daemon.errors()))
        self.assertIsNone(first.process.poll())

    def test_taken_endpoint_is_an_error_that_names_port_and_holder(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            port = silent.getsockname()[1]
            # Longer than a connect may take, and than it takes until a user hears why.
            node = self.node("a", f"127.0.0.1:{port}", conf="read_timeout=12")
            self.assertEqual(node.wait(), 69)
            self.assertIn(f"waiting for the rendezvous at 127.0.0.1:{port}: connected, but no rendezvous answers there",
                          node.errors())
            self.assertIn(f"127.0.0.1:{port}", node.errors())
            self.assertIn(f"pid {os.getpid()}", node.errors())

    def test_other_versions_and_strangers(self):
        port = free_port()
        daemon = self.daemon(port)

        def talk(data, read=True):
            with socket.create_connection(("127.0.0.1", port), 10) as s:
                s.settimeout(20)
                s.sendall(data)
                answer = b""
                while read and (part := s.recv(4096)):
                    answer += part
                return answer
        answer = talk(hello(version=99))
        self.assertEqual(answer[:8], b"DDPRRDZV")
        self.assertEqual(answer[10], 0)
        sentence = answer[15:].decode()
        self.assertIn("version 99", sentence)
        poll("the daemon says the same", lambda: sentence in daemon.errors())
        self.assertEqual(talk(b"DDPRxxxxxxxxxxx")[10:11], b"\0")
        talk(hello() + struct.pack("<I", 1 << 31) + b"\1")                # a frame that is too long
        talk(hello()[:5], read=False)                                     # half an opening
        talk(hello() + struct.pack("<IB", 2, 250) + b"x")                 # unknown type
        with socket.create_connection(("127.0.0.1", port), 10) as s:      # a message before Join
            s.settimeout(20)
            s.sendall(hello())
            s.recv(4096)
            s.sendall(struct.pack("<IBQB", 10, 3, 1, 0))
            self.assertEqual(s.recv(4096), b"")
        node = self.node("a", f"127.0.0.1:{port}", nnodes="1")
        self.wait_for_world(1)
        self.end_well(node)

    def test_operators(self):
        port = free_port()
        endpoint = f"127.0.0.1:{port}"
        self.daemon(port)
        # Workers that save and end with 75: nobody is to start again at once what an operator has stopped.
        nodes = [self.node(n, endpoint, nnodes="1:2", conf=FAST, TEST_TERM_CODE="75") for n in "ab"]
        self.wait_for_world(2)
        table = self.ctl(endpoint, "status").stdout
        self.assertRegex(table, r"job job  running  round 1  nodes 2 of 1:2  world size 2")
        status = json.loads(self.ctl(endpoint, "status", "job", "--json").stdout)["jobs"][0]
        victim = status["nodes"][1]["node_id"]
        answer = self.ctl(endpoint, "drain", victim)
        self.assertEqual((answer.returncode, answer.stdout), (0, f"drained 1 node ({victim}): job 1\n"))
        self.wait_for_world(1, 1)
        codes = [n.process.poll() for n in nodes]
        drained = poll("one node ended", lambda: [n for n in nodes if n.process.poll() is not None])[0]
        self.assertEqual(drained.wait(), 143, (codes, drained.errors()))
        saved = "its workers saved their state and ended with 75"
        self.assertIn(f"ddprun: drained with ddpctl drain; {saved}", drained.errors())
        self.assertEqual(self.ctl(endpoint, "drain", "nobody").returncode, 1)
        self.assertEqual(self.ctl(endpoint, "stop", "job").returncode, 0)
        for node in nodes:
            self.assertEqual(node.wait(), 143, node.errors())
            if node is not drained:
                self.assertIn(f"ddprun: stopped with ddpctl stop; {saved}", node.errors())
        self.assertEqual(self.ctl(endpoint, "stop", "job").returncode, 1)
        poll("its nodes are gone", lambda: self.ctl(endpoint, "roster", "job").returncode)
        self.assertIn("the job has ended: stopped with ddpctl stop", self.ctl(endpoint, "roster", "job").stderr)
        self.assertIn("no job 'another' is known", self.ctl(endpoint, "roster", "another").stderr)
        self.assertEqual(self.ctl(endpoint, "sttus").returncode, 2)
        self.assertEqual(self.ctl(f"127.0.0.1:{free_port()}", "status").returncode, 69)

    def test_drain_of_a_host_says_what_it_took(self):
        port = free_port()
        endpoint = f"127.0.0.1:{port}"
        self.daemon(port)
        waiting = [self.node(n, endpoint, "--rdzv-id=" + job, nnodes="4")
                   for n, job in (("a", "one"), ("b", "one"), ("c", "two"))]
        poll("all are here", lambda: self.ctl(endpoint, "status").stdout.count("  waiting ") == 3)
        self.assertIn("--rdzv-id", self.ctl(endpoint, "drain", "0").stderr)
        self.assertEqual(self.ctl(endpoint, "drain", "0", "--rdzv-id=one").returncode, 1)  # they have no rank yet
        self.assertEqual(self.ctl(endpoint, "drain", "127.0.0.1", "--rdzv-id=two").stdout,
                         "drained 1 node (127.0.0.1): two 1\n")
        self.assertEqual(waiting[2].wait(), 143, waiting[2].errors())
        late = self.node("d", endpoint, "--rdzv-id=two", nnodes="4")
        poll("it is here", lambda: self.ctl(endpoint, "status").stdout.count("  waiting ") == 3)
        name = socket.gethostname()
        self.assertEqual(self.ctl(endpoint, "drain", name).stdout, f"drained 3 nodes ({name}): one 2, two 1\n")
        for node in (*waiting[:2], late):
            self.assertEqual(node.wait(), 143, node.errors())

    def test_metrics_health_and_systemd(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            path = str(self.dir / "notify")
            systemd.bind(path)
            systemd.settimeout(LIMIT)
            daemon = self.daemon(0, extra=("--metrics-port", "0"), NOTIFY_SOCKET=path)
            self.assertEqual(systemd.recv(100), b"READY=1")
            port, metrics = map(int, re.search(r"serving port=(\d+) metrics_port=(\d+)", daemon.errors()).groups())
            node = self.node("a", f"127.0.0.1:{port}", nnodes="1")
            self.wait_for_world(1)

            def get(target, **headers):
                with contextlib.closing(http.client.HTTPConnection("127.0.0.1", metrics, timeout=LIMIT)) as connection:
                    connection.request("GET", target, headers=headers)
                    response = connection.getresponse()
                    return response.status, response.read().decode(), response.headers["Content-Type"]
            self.assertEqual(get("/healthz")[:2], (200, "ok\n"))
            self.assertEqual(get("/readyz")[:2], (200, "ok\n"))
            self.assertEqual(get("/nothing")[0], 404)
            status, text, kind = get("/metrics")
            self.assertEqual((status, kind), (200, "text/plain; version=0.0.4; charset=utf-8"))
            self.assertIn('ddprun_job_world_size{run_id="job"} 1\n', text)
            self.assertIn("# TYPE ddprun_rounds_total counter\nddprun_rounds_total 1\n", text)
            opened = get("/metrics", Accept="application/openmetrics-text; version=1.0.0")
            self.assertTrue(opened[1].endswith("# EOF\n"))
            self.assertIn("# TYPE ddprun_rounds counter\nddprun_rounds_total 1\n", opened[1])
            promtool = shutil.which("promtool")
            if promtool:
                checked = subprocess.run([promtool, "check", "metrics"], input=text, text=True, capture_output=True, check=False)
                self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ""))
            self.end_well(node)
            daemon.signal(signal.SIGTERM)
            self.assertEqual(systemd.recv(100), b"STOPPING=1")
            self.assertEqual(daemon.wait(), 0)

    def test_a_node_that_comes_and_dies_again_and_again_does_not_disturb_the_others(self):
        port = free_port()
        daemon = self.daemon(port)

        def come(name):
            return self.node(name, f"127.0.0.1:{port}", nnodes="2:3", conf="last_call_timeout=1")
        steady = [come("a"), come("b")]
        world = self.wait_for_world(2)
        for i in range(2):
            pod = come(f"pod{i}")
            world = self.wait_for_world(3, newer_than=world[0]["round"])
            pod.signal(signal.SIGKILL)
            pod.wait()
            world = self.wait_for_world(2, newer_than=world[0]["round"])
        self.assertIn("came and went 2 times, each time within 60 s: it is taken in again when it has stayed 20 s",
                      daemon.errors())
        for i in range(2, 5):
            pod = come(f"pod{i}")
            poll("it is told", lambda: "came and went: if this one stays" in pod.errors())
            pod.signal(signal.SIGKILL)
            pod.wait()
        self.assertEqual({w["pid"] for w in self.alive()}, {w["pid"] for w in world})
        self.end_well(*steady)
        self.assertEqual(max(w["round"] for w in self.workers()), 5)

    def test_configuration_file(self):
        config = self.dir / "rendezvous.yaml"
        config.write_text("port: 0\naddress: 127.0.0.1\nlog_level: warning\n")
        quiet = self.start("quiet", BIN / "ddprun-rendezvous", "--config", config)

        def listens():
            try:
                return any("socket" in os.readlink(fd) for fd in pathlib.Path(f"/proc/{quiet.pid}/fd").iterdir())
            except OSError:  # what is there comes and goes at the start
                return False
        poll("it listens", listens)
        self.assertTrue(running(quiet.pid))
        config.write_text("prot: 29400\n")
        bad = self.start("bad", BIN / "ddprun-rendezvous", "--config", config)
        self.assertEqual(bad.wait(), 2)
        self.assertIn("rendezvous.yaml:1", bad.errors())
        self.assertIn("port", bad.errors())
        token = self.dir / "token"
        token.write_text("secret\n")
        token.chmod(0o644)
        open_token = self.start("open", BIN / "ddprun-rendezvous", "--port=0", "--token-file", token)
        self.assertEqual(open_token.wait(), 2)
        self.assertIn("chmod 600", open_token.errors())
        refused = self.ctl("127.0.0.1:1", "stop", "job", "--token-file", str(token))
        self.assertEqual((refused.returncode, "chmod 600" in refused.stderr), (2, True), refused)
        for words, flags in ((r"--port and --metrics-port are both 29400", ("--port=29400", "--metrics-port=29400")),
                             ("not a numeric address", ("--port=0", "--address=foo")),
                             ("not a numeric address", ("--port=0", "--metrics-port=0", "--metrics-address=foo")),
                             ("--state-file /nodir/x: cannot make its lock", ("--port=0", "--state-file=/nodir/x"))):
            wrong = self.start("wrong", BIN / "ddprun-rendezvous", *flags)
            self.assertEqual(wrong.wait(), 2, wrong.errors())
            self.assertIn(words, wrong.errors())


if __name__ == "__main__":
    main()
