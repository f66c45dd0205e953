"""Server names that are derived from a command or URL."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.cases import check_cases
from toolfold.cli.server_names import derive_name, is_launcher
from toolfold.mcp.importing import normalise_server_name


@check_cases(
    ("command", "name"),
    [
        ("uvx mcp-server-time", "time"),
        ("uvx --from git+https://github.com/oraios/serena serena start-mcp-server", "serena"),
        ("uvx mcp-server-git@latest --repository .", "git"),
        ("uvx mcp-atlassian", "atlassian"),
        ("uvx git+https://github.com/some/weather-mcp.git@main", "weather"),
        ("npx -y @modelcontextprotocol/server-filesystem /srv", "filesystem"),
        ("npx -y @playwright/mcp@latest", "playwright"),
        ("npx @upstash/context7-mcp", "context7"),
        ("npx -y mcp-remote https://mcp.linear.app/sse", "linear"),
        ("pnpm dlx @scope/thing-mcp-server@1.2.3", "thing"),
        ("python -m mcp_server_fetch", "fetch"),
        ("/usr/bin/python3.12 -I -m pkg", "pkg"),
        ("uv run python -m mcp_server_fetch", "fetch"),
        ("uv --directory /srv/weather run server.py", "weather"),
        ("uv tool run mcp-server-sqlite --db-path x.db", "sqlite"),
        ("pipx run mcp-server-time", "time"),
        ("node path/server.js", "path"),
        ("node /home/x/github-mcp/dist/index.js", "github"),
        ("java -jar /opt/wiremock-mcp.jar", "wiremock"),
        ("docker run -i --rm -e TOKEN ghcr.io/github/github-mcp-server:v1", "github"),
        ("docker run -i --rm --mount type=bind,src=/a,dst=/b mcp/filesystem /b", "filesystem"),
        ("podman run --rm -i localhost:5000/mcp/time@sha256:abc", "time"),
        ("./my-server", "my"),
        ("/opt/tools/server", "tools"),
        ("https://docs.example/mcp", "docs"),
        ("https://mcp.notion.com/mcp", "notion"),
        ("http://127.0.0.1:8000/mcp", "server"),
    ],
)
def test_server_name_is_derived_from_the_package_or_program_in_its_command(command: str, name: str) -> None:
    assert derive_name(command.split()) == name


@given(
    st.lists(
        st.one_of(st.text(max_size=30), st.sampled_from(["uvx", "docker", "run", "-m", "python", "@", "/"]))
    )
)
def test_name_derived_from_any_command_is_a_valid_server_name(words: list[str]) -> None:
    name = derive_name(words)
    assert name
    assert normalise_server_name(name) == name


@check_cases("word", ["uvx", "npx", "python3.12", "docker", "./run", "C:\\x\\run.exe", "https://x.example"])
def test_is_launcher_returns_true_for_launcher_programs_and_paths_and_urls(word: str) -> None:
    assert is_launcher(word)


@check_cases("word", ["time", "git", "mcp-server-time", "pythonic", "my.server"])
def test_is_launcher_returns_false_for_words_that_can_be_server_names(word: str) -> None:
    assert not is_launcher(word)
