"""The files for containers, systemd and Kubernetes are valid for the programs that read or check them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from toolfold.config import Config, load_config

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "toolfold"
PROGRAMS = Path(sys.prefix, "test_tools/linters/bin")
TIMEOUT_S = 120


def run_linter(name: str, *words: str, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Run a program that checks files and return its output; skip the test if it is not installed."""
    program = shutil.which(name, path=f"{PROGRAMS}:/usr/bin:/bin")
    if program is None:
        pytest.skip(f"{name} is not installed: run `make test-tools`")
    done = subprocess.run(
        [program, *words],
        cwd=cwd,
        env={"PATH": f"{PROGRAMS}:/usr/bin:/bin", "HOME": str(cwd), **(env or {})},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def render_chart(*options: str) -> str:
    return run_linter("helm", "template", "office", str(CHART), *options)


def parse_yaml(text: str) -> list[Any]:
    """Return the documents of a YAML text that are not empty."""
    return [each for each in YAML(typ="safe").load_all(text) if each]


def load_settings(text: str, directory: Path) -> Config:
    """Load a text as the settings file of Toolfold."""
    file = directory / "config.yaml"
    file.write_text(text)
    return load_config(env={"TOOLFOLD_HOME": str(directory), "TOOLFOLD_CONFIG": str(file)})


def test_containerfile_passes_hadolint_and_copies_only_files_that_exist() -> None:
    run_linter("hadolint", str(DEPLOY / "Containerfile"))
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Containerfile").read_text(), re.M)
    assert copied
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name


def test_systemd_accepts_the_service_unit_file(tmp_path: Path) -> None:
    unit = (DEPLOY / "toolfold.service").read_text()
    assert "/opt/toolfold/bin/toolfold" in unit
    file = tmp_path / "toolfold.service"
    file.write_text(unit.replace("/opt/toolfold/bin/toolfold", "/bin/true"))  # must exist
    assert run_linter("systemd-analyze", "verify", "--man=no", str(file)) == ""


def test_compose_file_is_accepted_by_podman_compose_and_contains_valid_settings(tmp_path: Path) -> None:
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed: run `make test-tools`")
    text = run_linter(
        "podman-compose",
        "-f",
        str(DEPLOY / "compose.yaml"),
        "config",
        env={"DATABASE_PASSWORD": "secret"},
    )
    (composed,) = parse_yaml(text)
    assert set(composed["services"]) == {"one", "two", "balancer", "database"}
    run_linter("compose-lint", str(DEPLOY / "compose.yaml"))
    (written,) = parse_yaml((DEPLOY / "compose.yaml").read_text())
    config = load_settings(written["configs"]["toolfold"]["content"], tmp_path)
    assert config.store.startswith("postgresql://")


def test_only_the_database_service_of_the_compose_file_is_restricted_to_internal_networks() -> None:
    (written,) = parse_yaml((DEPLOY / "compose.yaml").read_text())
    isolated = {name for name, options in written["networks"].items() if options.get("internal")}
    services = written["services"].items()
    assert [name for name, each in services if set(each["networks"]) <= isolated] == ["database"]


def test_load_balancer_of_the_compose_file_routes_dashboard_requests_of_a_client_to_one_replica() -> None:
    (written,) = parse_yaml((DEPLOY / "compose.yaml").read_text())
    settings = written["configs"]["balancer"]["content"]
    dashboard = re.search(r"location /ui \{\s*proxy_pass http://(\w+);", settings)
    assert dashboard
    assert re.search(rf"upstream {dashboard[1]} \{{\s*ip_hash;", settings)


def test_helm_chart_passes_helm_lint_strict() -> None:
    assert "0 chart(s) failed" in run_linter("helm", "lint", "--strict", str(CHART))


@pytest.mark.parametrize(
    "options", [(), ("--set", "database.host=db.example.com,database.existingSecret=given,replicas=3")]
)
def test_resources_rendered_by_the_helm_chart_match_the_kubernetes_schemas(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(render_chart(*options))
    run_linter("kubernetes-validate", "--strict", str(file))


def test_helm_chart_deploys_two_gateway_replicas_that_share_one_postgresql_database(tmp_path: Path) -> None:
    found = parse_yaml(render_chart())
    sets = {each["metadata"]["name"]: each for each in found if each["kind"] == "StatefulSet"}
    assert sets["office-toolfold"]["spec"]["replicas"] == 2
    assert sets["office-toolfold-database"]["spec"]["replicas"] == 1
    (settings,) = [each for each in found if each["kind"] == "ConfigMap"]
    config = load_settings(settings["data"]["config.yaml"], tmp_path)
    assert config.store == "postgresql://office-toolfold-database:5432/toolfold"
    assert "office-toolfold.default" in config.gateway.hosts
    pod = sets["office-toolfold"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > config.gateway.drain_seconds
    (container,) = pod["containers"]
    probes = {key: container[key]["httpGet"]["path"] for key in ("livenessProbe", "readinessProbe")}
    assert probes == {"livenessProbe": "/healthz", "readinessProbe": "/readyz"}
    assert "password" not in json.dumps(settings)
