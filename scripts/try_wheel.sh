#!/bin/sh
# Builds the wheel, makes a first tool call with it in a real client, and runs the demo and the gateway from it in a new
# environment outside the checkout, because the installed package must not depend on files of the checkout.
set -eu
python=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT INT TERM
"$python" -m hatchling build -t wheel -d "$folder/dist" >/dev/null
sh scripts/first_call.sh "$python" "$folder"/dist/*.whl "$folder"
cp tests/mcp/fault_server.py "$folder/server.py" # needs only Python
cd "$folder"
./venv/bin/toolfold demo --json >demo.json
./venv/bin/python - <<'CHECK'
import json, pathlib, toolfold
shown = json.loads(pathlib.Path("demo.json").read_text())
assert ".venv" not in toolfold.__file__ and "src" not in pathlib.Path(toolfold.__file__).parts, toolfold.__file__
assert all(row["tokens_sent"] < row["tokens_all"] / 2 for row in shown), shown
print(f"the wheel works outside the checkout: {len(shown)} messages shown")
CHECK
# The command analyser works separately, with its rules and type information.
./venv/bin/python -m shellverdict "ls -la"
for command in "git push --force" "rm -rf /"; do
  status=0
  ./venv/bin/python -m shellverdict --json "$command" >verdict.json || status=$?
  STATUS=$status ./venv/bin/python - <<'CHECK'
import json, os, pathlib, shellverdict
package = pathlib.Path(shellverdict.__file__).parent
assert "src" not in package.parts and (package / "py.typed").is_file() and (package / "README.md").is_file(), package
verdict = json.loads(pathlib.Path("verdict.json").read_text())
assert int(os.environ["STATUS"]) == (2 if verdict["blocked"] else 1), verdict
print(f"`python -m shellverdict` of the wheel: {verdict['findings'][0]['reason']}")
CHECK
done
# Like a client: start the gateway, list its tools and call one.
TOOLFOLD_HOME=$folder/home2 TOOLFOLD_CONFIG=$folder/settings.yaml ./venv/bin/python - <<'CHECK'
import asyncio, json, os, pathlib, sys
from mcp import Client, StdioServerParameters

async def main():
    server = {"command": sys.executable, "args": ["server.py"], "cwd": os.getcwd()}
    settings = {"mcp": {"servers": {"test": server}, "wait_seconds": 60}}
    pathlib.Path("settings.yaml").write_text(json.dumps(settings))
    command = StdioServerParameters(command="./venv/bin/toolfold", args=["mcp", "serve"], env=dict(os.environ))
    for mode in ("legacy", "2026-07-28"):
        async with Client(command, mode=mode) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            assert names == ["test_echo"], names
            answer = await client.call_tool("test_echo", {"text": "hello"})
            assert answer.content[0].text == "hello", answer
    print("`toolfold mcp serve` of the wheel lists and calls")

asyncio.run(main())
CHECK
