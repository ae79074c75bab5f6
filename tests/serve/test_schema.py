"""Requests that schemathesis makes of the OpenAPI description: no 5xx, and answers as described."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from kedge.serve.app import create_app
from kedge.serve.v1.routes import Service, router

TOKEN = {"Authorization": "Bearer schema-token"}
HEAD = {"text_features": [[1, 0, 0], [0, 1, 0]], "normalize": True, "classes": ["cat", "dog"]}
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", "25"))  # for each route; many more by hand


class _Server:
    """The application, made anew for each run. The description is read when tests are collected, before that."""

    def __init__(self, streams: Path) -> None:
        service = Service(streams)
        self.app = create_app(router(service), token="schema-token", port=80, watch=service.metrics)
        self.client = TestClient(self.app, base_url="http://localhost", headers=TOKEN)
        self.stream = self.client.post("/v1/streams", json=HEAD).json()["id"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> _Server:
    return _Server(tmp_path_factory.mktemp("streams"))


with tempfile.TemporaryDirectory() as folder:
    schema = schemathesis.openapi.from_dict(_Server(Path(folder)).client.get("/v1/openapi.json").json())


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_breaks_the_server(case: Any, server: _Server) -> None:
    if "id" in case.path_parameters and case.method != "DELETE":
        case.path_parameters["id"] = server.stream
    answer = case.call(app=server.app, headers=TOKEN, base_url="http://localhost")
    case.validate_response(answer, checks=CHECKS)
