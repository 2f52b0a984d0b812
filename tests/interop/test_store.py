"""Our store under real torch clients, and our store client against torch's own servers."""
import re
import sys

from support import BUILD_DIR, HERE, InteropTest

SERVER = HERE.parent / "bench" / "store" / "libuv_server.py"


class Store(InteropTest):
    def daemon(self):
        """(program, port) of a store of its own."""
        running = self.start("ddprun-rendezvous", "--port", 0)
        found = self.wait_until(lambda: re.search(r" port=(\d+)", running.err), "the daemon's port in its log")
        return running, int(found.group(1))

    def torch_server(self, *options):
        running = self.start(sys.executable, SERVER, "--stay", *options)
        found = self.wait_until(lambda: re.search(r"port (\d+)", running.out), "torch's server to print its port")
        return int(found.group(1))

    def python(self, script, *arguments, **env):
        return self.run_program(sys.executable, self.script(script), *arguments, env=env)

    def test_torchs_client_against_our_store(self):
        running, port = self.daemon()
        run = self.python("store_calls.py", "127.0.0.1", port)
        self.assertEqual(run.code, 0, run)
        self.assertIn("all parts ok", run.out, run)
        self.assertIsNone(running.process.poll(), running.err)
        # Nothing that a torch client says is taken for malformed.
        self.assertNotIn("closed a", running.err)

    def test_torchs_client_by_name_and_by_ipv6(self):
        _, port = self.daemon()
        for host in ("localhost", "::1"):
            run = self.run_program(sys.executable, "-c",
                                   "import sys; from torch.distributed import TCPStore\n"
                                   "s = TCPStore(sys.argv[1], int(sys.argv[2]), None, False); s.set('k', 'v')\n"
                                   "assert s.get('k') == b'v'", host, port)
            self.assertEqual(run.code, 0, run)

    def our_client(self, port, *without):
        run = self.run_program(BUILD_DIR / "tests" / "store_client_calls", "127.0.0.1", port, *without)
        self.assertEqual(run.code, 0, run)
        self.assertIn("all calls ok", run.out, run)

    def test_our_client_against_our_store(self):
        self.our_client(self.daemon()[1])

    def test_our_client_against_torchs_libuv_server(self):
        self.our_client(self.torch_server())

    def test_our_client_against_torchs_legacy_server(self):
        self.our_client(self.torch_server("--legacy"), "no-queues")

    def test_gloo_and_ddp_with_the_store_v2_api(self):
        for ranks in (2, 4):
            folder = self.dir / f"v2-{ranks}"
            folder.mkdir()
            run = self.ddprun("--standalone", f"--nproc-per-node={ranks}", self.script("ddp_train.py"), folder,
                              env={"GLOO_ENABLE_STORE_V2_API": 1})
            self.assertEqual(run.code, 0, run)
            self.assertEqual(len(list(folder.iterdir())), ranks, run)

    def test_ranks_that_no_launcher_started_meet_at_the_daemon(self):
        _, port = self.daemon()
        for extra in ({}, {"GLOO_ENABLE_STORE_V2_API": 1}):
            folder = self.dir / f"plain{len(extra)}"
            folder.mkdir()
            ranks = []
            for rank in range(2):
                env = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2,
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True",
                       "TORCHELASTIC_RESTART_COUNT": 0, **extra}
                ranks.append(self.start(sys.executable, self.script("ddp_train.py"), folder, env=env))
            for running in ranks:
                run = running.wait()
                self.assertEqual(run.code, 0, run)
            # The second pair needs an empty key space (torch's clients cannot be told a prefix).
            _, port = self.daemon()
