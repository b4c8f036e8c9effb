"""The examples of deployment keep what the security document promises."""

from __future__ import annotations

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_nginx_passes_no_post_on_to_the_next_server() -> None:
    lines = (ROOT / "deploy" / "nginx.conf").read_text(encoding="utf-8").splitlines()
    (passed_on,) = [line.strip() for line in lines if line.strip().startswith("proxy_next_upstream ")]
    assert "non_idempotent" not in passed_on


def test_compose_serves_under_a_name_and_lets_replicas_agree() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    environment = compose["services"]["vitviz"]["environment"]
    assert environment["VITVIZ_HOSTS"] == "${VITVIZ_HOSTS:-localhost}"
    assert "VITVIZ_SECRET" in environment
