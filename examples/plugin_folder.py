"""Load a plugin, a module with a function `register(plugin)`, from the user's plugins directory."""

import tempfile
from pathlib import Path

from toolfold import open_runtime

PLUGIN = '''
from toolfold import tool

@tool
def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper() + "!"

def register(plugin):
    plugin.add(shout)
    plugin.toolset("voice", tools=["shout"], description="Tools that change text.")
    plugin.hook("pre_tool_call", lambda tool, args, context: print(f"about to run {tool.name}"))
'''


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "plugins"
        folder.mkdir()
        (folder / "loud.py").write_text(PLUGIN)
        settings = {"plugins.enabled": True, "plugins.folder": folder}
        with open_runtime(settings=settings) as runtime:
            for report in runtime.sources:
                if report.kind != "builtin":
                    print(report.name, report.state, report.tools, report.toolsets)
            print(runtime.session(["voice"]).call_sync("shout", {"text": "hello"}).text)


if __name__ == "__main__":
    main()
