"""Many clients at once: does the service for programs hold, and does it answer what the library answers?

    make load        (or: python benchmarks/load.py --seconds 10 --clients 20)

A server is started as a process of its own. Each client is a thread with one connection. Honest ones send batches to
/v1/adapt, or lead a stream: create it, send batches, read its file, delete it. Every answer is compared with that of
the library, bit for bit. Hostile ones send what must be refused: no token, a foreign Host, deep JSON, huge bodies,
or half of a body. It fails if anything else than the right answer or a refusal comes back, or if memory grows.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import describe, sentence
from measuring import say

import kedge

TOKEN = "token-of-the-load-test"
BATCHES, STEPS, N, K, D = 8, 8, 64, 20, 128
HOSTILE = 0.2  # of the clients
FLAT = 1.1  # memory at the end : in the middle
METHODS = ("kedge", "stata", "oga", "tda")


def serve(port: int, streams: Path) -> None:
    """The server, until its process is ended."""
    import uvicorn

    from kedge.serve.app import create_app
    from kedge.serve.protocol import PromptProtocol
    from kedge.serve.v1.routes import Service, router

    torch.set_num_threads(1)
    service = Service(streams)
    app = create_app(router(service), token=TOKEN, port=port, watch=service.metrics)
    uvicorn.run(
        app, port=port, http=PromptProtocol, ws="none", log_level="warning", access_log=False, limit_concurrency=256
    )


class Work:
    """What the clients send, and what must come back."""

    def __init__(self) -> None:
        features = kedge.simulate(BATCHES * N, K, D, seed=0)
        x, t = (a.float().numpy() for a in (features.image_features, features.head.features))
        self.batches = np.split(x, BATCHES)
        self.head = {"text_features": packed(t)}
        self.adapt = [
            (json.dumps({"image_features": packed(b), **self.head, "method": m, "probs": True}), kedge.adapt(b, t, m))
            for b, m in itertools.product(self.batches, METHODS)
        ]
        self.steps = {}
        for method in METHODS:
            stream = kedge.Stream(t, method)
            self.steps[method] = [stream.step(self.batches[i % BATCHES]) for i in range(STEPS)]
        self.sent = [packed(b) for b in self.batches]


class Client(threading.Thread):
    """One client, until the time is over."""

    def __init__(self, port: int, until: float, number: int, hostile: bool, work: Work) -> None:
        super().__init__(daemon=True)
        self.port, self.until, self.work = port, until, work
        self.random = random.Random(number)
        self.kind = "hostile" if hostile else ("adapt", "streams")[number % 2]
        self.line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.seconds: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.errors: list[str] = []

    def run(self) -> None:
        turns = {"adapt": self.adapt, "streams": self.stream, "hostile": self.attack}[self.kind]()
        while time.monotonic() < self.until:
            try:
                next(turns)
            except Exception as error:
                self.errors.append(f"{self.kind}: {type(error).__name__}: {error}")
                self.line.close()
                turns = {"adapt": self.adapt, "streams": self.stream, "hostile": self.attack}[self.kind]()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        text = json.dumps(body) if isinstance(body, dict) else body
        given = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
        start = time.perf_counter()
        self.line.request(method, path, text, given)
        answer = self.line.getresponse()
        content = answer.read()
        self.seconds.append(time.perf_counter() - start)
        self.statuses[answer.status] += 1
        return answer.status, content

    def adapt(self) -> Iterator[None]:
        while True:
            body, expected = self.random.choice(self.work.adapt)
            self.compare(self.ask("POST", "/v1/adapt", body), expected)
            yield

    def stream(self) -> Iterator[None]:
        while True:
            method = self.random.choice(METHODS)
            name = json.loads(self.ask("POST", "/v1/streams", {**self.work.head, "method": method})[1])["id"]
            for i, expected in enumerate(self.work.steps[method]):
                asked = {"image_features": self.work.sent[i % BATCHES], "step": i, "probs": True}
                self.compare(self.ask("POST", f"/v1/streams/{name}/step", asked), expected)
                yield
            status, content = self.ask("GET", f"/v1/streams/{name}/state")
            self.check(status == 200 and len(content) > D, f"state: {status}")
            self.check(self.ask("DELETE", f"/v1/streams/{name}")[0] == 204, "delete")

    def attack(self) -> Iterator[None]:
        body, _ = self.work.adapt[0]
        huge = {"shape": [100_000, 65_536], "dtype": "float64", "data": "AAAA"}
        attacks: list[tuple[set[int], Callable[[], tuple[int, bytes]]]] = [
            ({401}, lambda: self.ask("POST", "/v1/adapt", body, Authorization="Bearer wrong")),
            ({403}, lambda: self.ask("GET", "/v1/streams", Host="evil.example")),
            ({403}, lambda: self.ask("POST", "/v1/streams", "{}", Origin="http://evil.example")),
            ({404}, lambda: self.ask("GET", "/v1/streams/%2e%2e/%2e%2e/etc/passwd")),
            ({400, 422}, lambda: self.ask("POST", "/v1/adapt", "[" * 100_000)),
            ({400, 422}, lambda: self.ask("POST", "/v1/adapt", '{"image_features": [[NaN]]}')),
            ({400, 422}, lambda: self.ask("POST", "/v1/adapt", {"image_features": huge, "text_features": huge})),
            ({413}, lambda: self.ask("POST", "/v1/adapt", "", **{"Content-Length": str(1 << 40)})),
            ({404}, lambda: self.ask("GET", "/v1/streams/" + "0" * 32)),
        ]
        while True:
            wanted, attack = self.random.choice(attacks)
            status, content = attack()
            self.check(status in wanted, f"{status} instead of {wanted}: {content[:200]!r}")
            if self.random.random() < 0.1:
                self.leave_in_the_middle()
            time.sleep(0.02)
            yield

    def leave_in_the_middle(self) -> None:
        """Send half of a request and go."""
        head = f"POST /v1/adapt HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        whole = f"{head}Content-Type: application/json\r\nContent-Length: 5000\r\n\r\n" + "[" * 2000
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as line:
            line.sendall(whole[: self.random.randrange(len(whole))].encode())

    def compare(self, answer: tuple[int, bytes], expected: kedge.Result[Any]) -> None:
        status, content = answer
        self.check(status == 200, f"{status}: {content[:200]!r}")
        found = json.loads(content)
        for name, array in (("probs", expected.probs), ("labels", expected.labels), ("none", expected.none)):
            self.check(np.array_equal(unpacked(found[name]), array), f"{name} differs from the library's")

    def check(self, fine: bool, otherwise: str) -> None:
        if not fine:
            raise AssertionError(otherwise)


def packed(array: np.ndarray[Any, Any]) -> dict[str, Any]:
    data = base64.b64encode(array.tobytes()).decode()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": data}


def unpacked(entry: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(entry["data"]), entry["dtype"]).reshape(entry["shape"])


def memory_mb(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(clients: int, seconds: float) -> dict[str, Any]:
    """The figures of one run."""
    torch.set_num_threads(1)
    work = Work()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--serve", str(port), folder]
        with open(Path(folder) / "stderr", "w") as log, subprocess.Popen(command, stderr=log) as server:
            try:
                _wait(port)
                warm = [Client(port, time.monotonic() + seconds / 10, -i, False, work) for i in range(clients // 2)]
                _run(warm)
                until = time.monotonic() + seconds
                hostile = round(clients * HOSTILE)
                every = [Client(port, until, i, i < hostile, work) for i in range(clients)]
                for client in every:
                    client.start()
                memory = [memory_mb(server.pid)]
                while time.monotonic() < until:
                    time.sleep(min(1.0, seconds / 10))
                    memory.append(memory_mb(server.pid))
                for client in every:
                    client.join(60)
            finally:
                server.terminate()
                server.wait(30)
        failures = [line for line in (Path(folder) / "stderr").read_text().splitlines() if "Traceback" in line]
    errors = [error for client in (*warm, *every) for error in client.errors]
    return {
        "clients": clients,
        "seconds": seconds,
        "kinds": {
            kind: _kind([c for c in every if c.kind == kind], seconds) for kind in ("adapt", "streams", "hostile")
        },
        "statuses": dict(sum((c.statuses for c in every), Counter())),
        "errors": len(errors) + len(failures) + sum(c.is_alive() for c in every),
        "first_errors": [*errors[:3], *failures[:1]],
        "memory_mb": {"start": memory[0], "middle": memory[len(memory) // 2], "end": memory[-1], "most": max(memory)},
    }


def _kind(clients: list[Client], seconds: float) -> dict[str, float]:
    times = np.array([time for client in clients for time in client.seconds] or [0.0])
    found = dict(
        zip(("p50", "p90", "p99", "max"), np.quantile(times, [0.5, 0.9, 0.99, 1]).round(4).tolist(), strict=True)
    )
    return {"requests": len(times), "per_second": round(len(times) / seconds, 1), **found}


def _run(clients: list[Client]) -> None:
    for client in clients:
        client.start()
    for client in clients:
        client.join()


def _wait(port: int) -> None:
    """Until the server answers."""
    for _ in range(600):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server does not start")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(int(given.serve[0]), Path(given.serve[1]) / "streams")
        return 0
    say(f"{given.clients} clients for {given.seconds:g} s on {sentence(describe())}")
    found = measure(given.clients, given.seconds)
    print(json.dumps(found, indent=1))
    memory = found["memory_mb"]
    flat = memory["end"] <= FLAT * memory["middle"]
    say(f"errors: {found['errors']} (must be 0); memory {'flat' if flat else 'GROWS'}")
    return 0 if flat and not found["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
