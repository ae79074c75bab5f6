"""A cluster of Ray with three nodes on this machine, shared by the tests of this folder."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="needs Ray: pip install 'kedge[cluster]'")
