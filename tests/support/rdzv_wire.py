"""The agent protocol spoken by hand, for peers that lie. What is on the wire: common/rdzv_fields.h."""
import os
import socket
import struct

from rdzv_support import LIMIT, hello

AGENT, OPERATOR = 1, 2
JOIN, REGISTER, HEARTBEAT, LEAVE, FAILURE, DONE, FLIGHT_REPLY = 1, 2, 3, 4, 5, 6, 8
ASSIGNMENT, HEARTBEAT_ACK, RESTART, SHUTDOWN, FLIGHT_REQUEST, NOTICE = 64, 65, 66, 68, 71, 72
STATUS_REQUEST, FLIGHT_QUERY = 128, 131
REPLY, FLIGHT_PART, REPLY_PART = 160, 161, 162


def text(value):
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<I", len(data)) + data


def read_text(payload, at):
    (size,) = struct.unpack_from("<I", payload, at)
    return payload[at + 4:at + 4 + size], at + 4 + size


def frame(kind, payload=b""):
    return struct.pack("<IB", len(payload) + 1, kind) + payload


def node(node_id, run_id="job", host="", nnodes=(1, 1), keep_alive_ms=5000, attempts=12):
    names = [run_id, node_id, host or f"host-{node_id}", "127.0.0.1", "default", ""]
    return (b"".join(map(text, names)) + struct.pack("<qBH", 1, 0, 1)           # nproc 1, no node_rank, port 1
            + struct.pack("<Bqqq", 0, *nnodes, 0)                                # c10d, max_restarts
            + struct.pack("<qqqq", 600_000, 600_000, 30_000, keep_alive_ms)      # milliseconds
            + struct.pack("<qqq", attempts, 0, 5_000))                           # attempts, crash loop


def join(node_id, connection=1, last_round=0, key="", **more):
    return frame(JOIN, node(node_id, **more) + struct.pack("<Qq", connection, last_round) + text(key))


def register(node_id, round_number=1, connection=1, key="", group_rank=0, nodes=1, first_rank=0, world=1, state=1, **more):
    slice_ = struct.pack("<qqqqqqqq", round_number, group_rank, nodes, first_rank, world, 0, world, 0) + text("") + struct.pack("<H", 0)
    return frame(REGISTER, node(node_id, **more) + struct.pack("<Q", connection) + slice_ + struct.pack("<B", state) + text(key))


class Peer:
    def __init__(self, port, kind=AGENT, opening=None):
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        self.socket.settimeout(LIMIT)
        self.socket.sendall(opening if opening is not None else hello(kind=kind))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def exactly(self, size):
        """So many bytes; b"" at the end of the connection."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self.socket.recv(size - len(data))
            except ConnectionResetError:
                return b""
            if not part:
                return b""
            data += part
        return bytes(data)

    def greeted(self):
        (size,) = struct.unpack_from("<I", self.exactly(15), 11)
        self.exactly(size)
        return self

    def send(self, data):
        self.socket.sendall(data)
        return self

    def read(self):
        """(type, payload); (None, b"") at the end of the connection."""
        head = self.exactly(4)
        if not head:
            return None, b""
        body = self.exactly(struct.unpack("<I", head)[0])
        return (body[0], body[1:]) if body else (None, b"")

    def read_until(self, *kinds):
        while True:
            kind, payload = self.read()
            if kind in kinds or kind is None:
                return kind, payload


def agent(port, node_id, **more):
    return Peer(port).greeted().send(join(node_id, **more))


def resident_bytes(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
