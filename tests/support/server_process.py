"""`kedge serve` in a process of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

SECONDS = 120  # a busy machine takes long to import torch


class Server:
    """A server in a process of its own."""

    def __init__(self, *options: str) -> None:
        command = [sys.executable, "-m", "kedge", "serve", *options, "--no-open"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout
        self.address = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", self.address)
        assert found, self.address + self.process.communicate(timeout=SECONDS)[1]
        self.port, self.token = int(found[1]), found[2]

    def connection(self, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.connection(method, path, body)
        assert answer.status == 200, answer.read()
        return json.loads(answer.read())

    def labelled(self) -> Any:
        """The labels, once they are there."""
        events = self.connection("GET", "/api/events")
        while (labels := self.ask("GET", "/api/labels"))["phase"] != "labelled":
            events.readline()  # something happened
        return labels

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Server]:
    """A server until the block ends."""
    found = Server(*options)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.end(signal.SIGKILL)
