"""Everything that torch's own TCPStore client can ask, against a store at HOST PORT. Prints "ok NAME" for each part.

What PyTorch's public store tests look at, asked in our own words: values, compare_set, waits, queues, barriers, counts,
prefixes, clones, time limits, worker counts, and the store utilities and the rendezvous backend of torch elastic.
"""
import os
import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import DistStoreError, PrefixStore, TCPStore

HOST, PORT = sys.argv[1], int(sys.argv[2])
LONG = timedelta(seconds=60)
SHORT = timedelta(milliseconds=200)


def client(timeout=LONG, **more):
    return TCPStore(HOST, PORT, None, False, timeout=timeout, wait_for_workers=False, **more)


def space(name):
    return PrefixStore(name, client())


def raises(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"{call} did not raise {kind.__name__}")


def in_thread(call, *arguments):
    result = {}

    def run():
        try:
            result["value"] = call(*arguments)
        except BaseException as error:
            result["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def finish():
        thread.join(60)
        assert not thread.is_alive(), "still waiting after 60 s"
        if "error" in result:
            raise result["error"]
        return result["value"]

    return finish


def set_get_check():
    store = space("set_get_check")
    store.add("n", 1)
    store.add("n", 2)
    store.add("n", 3)
    store.set("a", "one")
    store.set("a", "two")
    store.set("empty", "")
    assert store.get("n") == b"6" and store.get("a") == b"two" and store.get("empty") == b""
    assert store.check(["a", "n", "empty"]) and not store.check(["a", "missing"]) and store.check([])
    binary = bytes(range(256)) * 5
    store.set("binary", binary)
    assert store.get("binary") == binary
    store.set("\u043a\u043b\u044e\u0447 \U0001f511\n", "v")
    assert store.get("\u043a\u043b\u044e\u0447 \U0001f511\n") == b"v"


def large_values():
    store, other = space("large"), space("large")
    value = os.urandom(1 << 20) * 8
    store.set("eight", value)
    assert store.check(["eight"])
    assert other.get("eight") == value
    store.delete_key("eight")


def compare_set():
    store = space("compare_set")
    assert store.compare_set("k", "wrong", "x") == b"wrong"
    assert not store.check(["k"])
    assert store.compare_set("k", "", "first") == b"first"
    assert store.compare_set("k", "wrong", "x") == b"first"
    assert store.compare_set("k", "first", "second") == b"second"
    assert store.get("k") == b"second"


def compare_set_by_many():
    key, wins, each = "counter", 8, 25
    space("cas").set(key, "0:nobody")

    def work(me):
        store = space("cas")
        won, current = 0, store.get(key)
        while won < each:
            mine = b"%d:%d" % (int(current.split(b":")[0]) + 1, me)
            current = store.compare_set(key, current, mine)
            won += current == mine

    for finish in [in_thread(work, i) for i in range(wins)]:
        finish()
    assert int(space("cas").get(key).split(b":")[0]) == wins * each


def waits():
    store, other = space("waits"), space("waits")
    finish = in_thread(store.wait, ["a", "b", "c"])
    other.set("a", "1")
    other.append("c", "1")
    other.add("b", 1)
    finish()
    store.wait(["a", "b", "c"], SHORT)
    many = [in_thread(space("waits").get, "late") for _ in range(10)]
    other.compare_set("late", "", "now")
    assert all(finish() == b"now" for finish in many)


def timeouts_leave_the_client_usable():
    store = PrefixStore("timeouts", client(SHORT))
    assert "timeout" in raises(DistStoreError, store.get, "missing")
    assert "timeout" in raises(DistStoreError, store.wait, ["missing", "too"])
    raises(DistStoreError, store.multi_get, ["missing"])
    raises(DistStoreError, store.wait, ["missing"], timedelta(milliseconds=50))
    store.set("k", "v")
    assert store.get("k") == b"v"
    store.set_timeout(LONG)
    finish = in_thread(store.get, "later")
    space("timeouts").set("later", "x")
    assert finish() == b"x"


def append():
    store = space("append")
    store.append("k", "ab")
    store.append("k", "cd")
    store.set("other", "ab")
    store.append("other", "\0z")
    assert store.get("k") == b"abcd" and store.get("other") == b"ab\0z"


def multi():
    store = space("multi")
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.multi_get(["b", "a"]) == [b"2", b"1"] and store.multi_get([]) == []
    names = [f"k{i}" for i in range(5000)]
    store.multi_set(names, [name * 3 for name in names])
    assert store.multi_get(names) == [(name * 3).encode() for name in names]


def delete_and_count():
    store = client()
    before = store.num_keys()
    store.set("count/a", "1")
    store.add("count/b", 1)
    assert store.num_keys() == before + 2
    assert store.delete_key("count/a") and not store.delete_key("count/a")
    assert store.num_keys() == before + 1 and not store.check(["count/a"])


def list_keys():
    store = space("list_keys")
    for name in ("x", "y", "z"):
        store.set(name, "1")
    store.queue_push("queue", "no key")
    assert sorted(store.list_keys()) == ["x", "y", "z"]


def prefixes_and_clones():
    base = client()
    store = PrefixStore("outer", PrefixStore("inner", base))
    store.set("k", "v")
    assert base.get("inner/outer/k") == b"v"
    clone = store.clone()
    finish = in_thread(clone.get, "other")
    store.set("other", "from the first")
    assert finish() == b"from the first"


def queues():
    store, other = space("queues"), space("queues")
    assert store.queue_len("q") == 0
    raises(dist.QueueEmptyError, store.queue_pop, "q", False)
    store.queue_push("q", "1")
    store.queue_push("q", "2")
    assert store.queue_len("q") == 2 and store.queue_pop("q") == b"1" and store.queue_pop("q", False) == b"2"
    finish = in_thread(other.queue_pop, "q")
    store.queue_push("q", "3")
    assert finish() == b"3"
    jobs = [in_thread(space("queues").queue_pop, "jobs") for _ in range(6)]
    for i in range(6):
        store.queue_push("jobs", str(i))
    assert sorted(finish() for finish in jobs) == [b"%d" % i for i in range(6)]
    short = PrefixStore("queues", client(SHORT))
    raises(DistStoreError, short.queue_pop, "nothing")
    # A pop that ran out of time leaves no registration behind: the next wait is not ended by a push.
    waiting = in_thread(PrefixStore("queues", client(timedelta(seconds=1))).get, "answer")
    store.queue_push("nothing", "x")
    store.set("answer", "yes")
    assert waiting() == b"yes" and store.queue_pop("nothing") == b"x"


def queues_both_ways():
    def serve():
        store = space("both_ways")
        for _ in range(50):
            store.queue_push("answers", b"re:" + store.queue_pop("questions"))

    finish = in_thread(serve)
    store = space("both_ways")
    for i in range(50):
        store.queue_push("questions", str(i))
        assert store.queue_pop("answers") == b"re:%d" % i
    finish()


def barriers():
    stores = [client() for _ in range(4)]
    for finish in [in_thread(store.barrier, "barrier/b", 4, LONG) for store in stores]:
        finish()
    assert "timeout" in raises(DistStoreError, stores[0].barrier, "barrier/alone", 2, SHORT)
    assert stores[0].get("barrier/alone") == b"1"
    prefixed = [space("barriers") for _ in range(3)]
    for finish in [in_thread(store.barrier, "p", 3, LONG) for store in prefixed]:
        finish()


def worker_count():
    before = client().add("init_probe", 0)
    assert before == 0
    for _ in range(3):
        TCPStore(HOST, PORT, 3, False, timeout=LONG, wait_for_workers=True)
    # The counter's key has no leading "/", so no client of the public API sees it as one of its own.
    assert "init/" not in client().list_keys()


def many_clients():
    def work(me):
        store = space("many")
        for i in range(200):
            store.add("sum", 1)
            store.set(f"{me}/{i}", str(i))
        return all(store.get(f"{me}/{i}") == str(i).encode() for i in range(200))

    assert all(finish() for finish in [in_thread(work, i) for i in range(16)])
    assert space("many").add("sum", 0) == 16 * 200


def client_without_libuv():
    store = client(use_libuv=False)
    store.set("legacy/k", "v")
    assert store.get("legacy/k") == b"v" and store.add("legacy/n", 2) == 2


def elastic_store_utilities():
    from torch.distributed.elastic.utils import store as utilities

    def rank(me):
        store = space("utilities")
        data = utilities.synchronize(store, b"data%d" % me, me, 4, "sync", timeout=60)
        utilities.barrier(store, 4, "barrier", barrier_timeout=60, rank=me)
        return data

    for finish in [in_thread(rank, i) for i in range(4)]:
        assert finish() == [b"data%d" % i for i in range(4)]


def elastic_rendezvous_backend():
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    backend = C10dRendezvousBackend(client(), "job")
    assert backend.get_state() is None
    state, token, changed = backend.set_state(b"one")
    assert (state, changed) == (b"one", True)
    _, old, _ = backend.set_state(b"two", token)
    state, _, changed = backend.set_state(b"three", token)
    assert (state, changed) == (b"two", False)
    assert backend.set_state(b"three", old)[0] == b"three"


def elastic_rendezvous():
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    def node(_):
        parameters = RendezvousParameters(backend="c10d", endpoint=f"{HOST}:{PORT}", run_id="ours", min_nodes=2,
                                          max_nodes=2, is_host=False, join_timeout=60)
        info = get_rendezvous_handler(parameters).next_rendezvous()
        return info.rank, info.world_size

    assert sorted(finish() for finish in [in_thread(node, i) for i in range(2)]) == [(0, 2), (1, 2)]


PARTS = [set_get_check, large_values, compare_set, compare_set_by_many, waits, timeouts_leave_the_client_usable, append,
         multi, delete_and_count, list_keys, prefixes_and_clones, queues, queues_both_ways, barriers, worker_count,
         many_clients, client_without_libuv, elastic_store_utilities, elastic_rendezvous_backend, elastic_rendezvous]

if __name__ == "__main__":
    for part in PARTS:
        begin = time.monotonic()
        part()
        print(f"ok {part.__name__} {time.monotonic() - begin:.2f} s", flush=True)
    print("all parts ok", flush=True)
    os._exit(0)  # daemon threads of a part may still hold clients
