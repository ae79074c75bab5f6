from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Body, Response, WebSocket
from fastapi.responses import StreamingResponse
from starlette.websockets import WebSocketDisconnect

from kedge import SettingError
from kedge.serve import guard
from kedge.serve.app import create_app
from kedge.serve.exchange import HEADERS
from kedge.serve.guard import Guard, Limits
from serving import BEARER, TOKEN, client, head, raw, running, status

GO_ON = threading.Event()


def toy() -> APIRouter:
    routes = APIRouter()

    @routes.get("/")
    def start() -> dict[str, str]:
        return {"page": "start"}

    @routes.get("/v1/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @routes.post("/size")
    def size(content: Annotated[Any, Body()]) -> dict[str, int]:
        return {"length": len(content)}

    @routes.get("/kept")
    def kept() -> Response:
        return Response("x", headers={"Cache-Control": "max-age=9"})

    @routes.get("/slowly")
    def slowly() -> StreamingResponse:
        def parts() -> Iterator[bytes]:
            yield b"first"
            GO_ON.wait(10)
            yield b"last"

        return StreamingResponse(parts())

    @routes.websocket("/socket")
    async def web_socket(line: WebSocket) -> None:
        await line.accept()
        await line.close()

    @routes.get("/broken")
    def broken() -> None:
        raise RuntimeError("a secret of the server")

    return routes


def made(port: int = 80, **options: Any) -> Any:
    return create_app(toy(), token=TOKEN, port=port, **options)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    limits = Limits(body_bytes=1000, body_seconds=1, at_once=4)
    with running(lambda port: made(port, limits=limits), head_seconds=0.5) as port:
        yield port


def get(path: str = "/", app: Any = None, method: str = "GET", **headers: str) -> Any:
    names = {name.replace("_", "-"): value.encode("latin-1") for name, value in headers.items()}
    with client(app or made(), follow_redirects=False) as browser:
        return browser.request(method, path, headers=names)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost:80", "[::1]", "[::1]:80", "127.0.0.1:80"])
def test_own_hosts_pass(host: str) -> None:
    assert get(host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1:81", "localhost.evil.example", "evil@localhost", "10.0.0.7", "[::2]", "", "[::1"],
)
def test_foreign_hosts_are_refused(host: str) -> None:
    answer = get(host=host)
    assert answer.status_code == 403
    assert "this server is not" in answer.json()["error"]


def test_the_port_belongs_to_the_host() -> None:
    app = made(8017)
    assert get(app=app, host="localhost:8017").status_code == 200
    assert get(app=app, host="localhost").status_code == 403
    assert get(app=app, host="localhost:80").status_code == 403


def test_beyond_this_machine_addresses_and_its_own_names_pass() -> None:
    app = made(host="box.lan")
    for host in ("box.lan", "10.0.0.7", "[fe80::1]", socket.gethostname(), "localhost"):
        assert get(app=app, host=host).status_code == 200, host
    assert get(app=app, host="evil.example").status_code == 403


def test_two_hosts_are_refused(port: int) -> None:
    assert status(raw(port, head(port, "GET", "/", "Host: evil.example"))) in (400, 403)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://localhost:81", "file://", "null", "http://localhost@evil"]
)
def test_foreign_origins_are_refused(origin: str) -> None:
    assert get("/size", method="POST", origin=origin).status_code == 403


def test_own_origins_pass() -> None:
    for origin in ("http://localhost", "https://localhost", "http://LOCALHOST"):
        assert get(origin=origin).status_code == 200
    assert get(origin="null").status_code == 200  # harmless without a change


@pytest.mark.parametrize("site", ["cross-site", "same-site", "Cross-Site", "new-kind"])
def test_pages_of_other_sites_may_only_open_the_start(site: str) -> None:
    opened = {"sec_fetch_site": site, "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert get(**opened).status_code == 200
    assert get("/kept", **opened).status_code == 403
    assert get(method="POST", **opened).status_code == 403
    assert get(**{**opened, "sec_fetch_dest": "iframe"}).status_code == 403
    assert get(**{**opened, "sec_fetch_mode": "no-cors"}).status_code == 403
    for own in ("none", "same-origin"):
        assert get("/kept", sec_fetch_site=own).status_code == 200


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer \xff"])
def test_without_the_token_nothing_passes(given: str) -> None:
    answer = get("/kept", authorization=given)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    page = get("/", authorization=given)
    assert page.status_code == 401
    assert "kedge serve" in page.text
    assert page.headers["content-type"].startswith("text/html")
    assert get("/v1/health", authorization=given).status_code == 200
    assert get("/v1/health", authorization=given, method="POST").status_code == 401


def test_the_address_with_the_token_sets_a_cookie() -> None:
    browser = client(made(), follow_redirects=False)
    del browser.headers["Authorization"]
    answer = browser.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    name, *parts = answer.headers["set-cookie"].split("; ")
    assert name == f"kedge-80={TOKEN}"
    assert {part.lower() for part in parts} == {"httponly", "samesite=strict", "path=/"}
    assert browser.get("/kept").status_code == 200
    browser.cookies.clear()
    assert browser.get("/kept").status_code == 401
    assert browser.get("/?token=wrong").status_code == 401
    assert browser.get(f"/kept?token={TOKEN}").status_code == 401  # in this one address only
    assert browser.post(f"/?token={TOKEN}").status_code == 401
    assert browser.get("/kept", headers={"cookie": f"kedge-81={TOKEN}"}).status_code == 401
    assert browser.get("/kept", headers={"cookie": f"kedge-80=old; kedge-80={TOKEN}"}).status_code == 200


def test_a_link_on_another_site_leads_in() -> None:
    """The browser keeps the strict cookie back until a page of ours leads on."""
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert 'http-equiv="refresh"' in get(authorization="", **link).text
    assert "refresh" not in get(authorization="", sec_fetch_site="same-origin").text


@pytest.mark.parametrize("token", ["", "short", "with space in it", "ünicode-token"])
def test_tokens_that_do_not_fit_an_address(token: str) -> None:
    with pytest.raises(SettingError):
        Guard(made(), token=token, host="localhost", port=80)


@pytest.mark.parametrize("path", ["/", "/kept", "/nothing", "/broken", "/?token=wrong"])
def test_every_answer_has_the_headers(path: str) -> None:
    with client(made(), raise_server_exceptions=False) as browser:
        answers = [
            browser.get(path),
            browser.get(path, headers={"authorization": "no"}),
            browser.get(path, headers={"host": "x"}),
        ]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        assert answer.headers["cache-control"] == ("max-age=9" if path == "/kept" and answer.is_success else "no-store")
    assert "default-src 'none'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_a_failure_tells_a_client_nothing() -> None:
    with client(made(), raise_server_exceptions=False) as browser:
        answer = browser.get("/broken")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert list(answer.json()) == ["error"]


@pytest.mark.parametrize(
    "path",
    [
        "/../etc/passwd", "/%2e%2e/etc/passwd", "/a/%2e%2e", "/..%2fetc", "//etc/passwd", "/a//b", "/%00", "/a%00.png",
        "/..%5cetc", "/a%0d%0aSet-Cookie:x", "http://evil.example/", "*", "/page/..%252f..%252fetc%252fpasswd",
    ],
)  # fmt: skip
def test_no_path_leads_out(port: int, path: str) -> None:
    answer = raw(port, head(port, "GET", path))
    assert status(answer) in (400, 404)
    assert b"root:" not in answer


def test_a_body_of_a_length_that_is_too_large(port: int) -> None:
    start = time.monotonic()
    answer = raw(port, head(port, "POST", "/size", "Content-Length: 1001", "Content-Type: application/json"))
    assert status(answer) == 413
    assert time.monotonic() - start < 15  # nothing of the body came
    assert status(raw(port, head(port, "POST", "/size", f"Content-Length: {10**30}"))) in (400, 413)


def test_a_body_without_end(port: int) -> None:
    chunk = b"64\r\n" + b" " * 100 + b"\r\n"
    headers = head(port, "POST", "/size", "Transfer-Encoding: chunked", "Content-Type: application/json")
    assert status(raw(port, headers, *[chunk] * 30, pause=0.001)) == 413
    whole = [b"5\r\n[1,2]\r\n", b"0\r\n\r\n"]
    assert raw(port, headers, *whole).endswith(b'{"length":2}')


def test_a_slow_body(port: int) -> None:
    start = time.monotonic()
    headers = head(port, "POST", "/size", "Content-Length: 900", "Content-Type: application/json")
    answer = raw(port, headers, *[b"["] * 15, pause=0.1)  # it never stops to come
    assert status(answer) == 408
    assert b"connection: close" in answer.lower()
    assert time.monotonic() - start < 15


def test_a_slow_head(port: int) -> None:
    start = time.monotonic()
    assert raw(port, *[b"G", b"E", b"T", b" ", b"/"] * 3, pause=0.1) == b""
    assert raw(port) == b""  # nothing at all
    assert time.monotonic() - start < 15
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:  # the second request of a connection too
        line.sendall(head(port, "GET", "/kept").replace(b"Connection: close\r\n", b""))
        answer = b""
        while not answer.endswith(b"\r\n\r\nx"):
            answer += line.recv(1 << 16)
        line.sendall(b"GET /")
        assert line.recv(1 << 16) == b""


def test_what_nobody_reads_does_not_keep_the_connection(port: int) -> None:
    headers = head(port, "POST", "/nothing", "Content-Length: 900").replace(b"Connection: close\r\n", b"")
    start = time.monotonic()
    assert status(raw(port, headers, b"x")) == 404
    assert time.monotonic() - start < 15


def test_an_answer_reaches_a_client_that_sends_its_body_late(port: int) -> None:
    late = head(port, "POST", "/size", "Content-Length: 900").replace(TOKEN.encode(), b"wrong")
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        for part in (late, b"x" * 450, b"x" * 450):  # a connection that is closed too early refuses the last one
            line.sendall(part)
            time.sleep(0.1)
        assert status(line.recv(1 << 16)) == 401


@pytest.mark.parametrize("content", [b"[" * 900, b'{"a":' * 150, b"{", b"\xff", b"NaN]", b"[" + b"1" * 900 + b"}"])
def test_what_is_not_json(port: int, content: bytes) -> None:
    lines = f"Content-Length: {len(content)}", "Content-Type: application/json"
    assert status(raw(port, head(port, "POST", "/size", *lines), content)) in (400, 422)


def test_deeply_nested_json_is_refused() -> None:
    with client(made()) as browser:
        for content in ("[" * 200_000, "[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000):
            answer = browser.post("/size", content=content, headers={"content-type": "application/json"})
            assert answer.status_code in (400, 422)


def test_answers_are_not_buffered_and_many_at_once_are_refused(port: int) -> None:
    GO_ON.clear()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=BEARER, timeout=10) as browser:
        streams = [browser.stream("GET", "/slowly") for _ in range(4)]
        answers = [stream.__enter__() for stream in streams]
        parts = [answer.iter_raw() for answer in answers]
        assert [next(part) for part in parts] == [b"first"] * 4  # while the routes still wait
        refused = browser.get("/")
        GO_ON.set()
        assert [b"".join(part) for part in parts] == [b"last"] * 4
        for stream in streams:
            stream.__exit__(None, None, None)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert browser.get("/").status_code == 200


def test_a_refusal_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    app = made()
    for _ in range(5):
        get("/kept%1b[2J", app=app)
        get("/%1b[2J", app=app, authorization="Bearer secret-guess")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1  # of a kind in a second: all have an odd path
    assert lines[0].startswith("refused (404): GET ")
    assert "\x1b" not in lines[0]
    monkeypatch.setattr(guard, "QUIET", 0.0)
    get("/kept", app=app, host="evil.example")
    get("/kept%0a", app=app)
    line, other = capsys.readouterr().err.splitlines()
    assert "'evil.example'" in line
    assert "9 requests like it before" in other
    get("/?token=secret-guess", app=app, authorization="")
    assert "secret-guess" not in capsys.readouterr().err


def test_web_sockets_are_refused() -> None:
    with client(made()) as browser, pytest.raises(WebSocketDisconnect), browser.websocket_connect("/socket"):
        pass
