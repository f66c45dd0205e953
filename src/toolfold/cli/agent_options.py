"""Define the options of `run` and `chat` (model, session, toolsets, limits, approval), and open the agent."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import click

from toolfold.cli.output import NotFound

if TYPE_CHECKING:
    from toolfold.agent import Agent, AgentLimits
    from toolfold.cli.app import Invocation
    from toolfold.config import Config
    from toolfold.core.types import Asker
    from toolfold.models.client import ModelClient
    from toolfold.runtime.runtime import Runtime
    from toolfold.state.store import SessionRecord, SessionStore

LAST_SESSION = "last"
MAX_LISTED_SESSIONS = 1_000
_APPROVAL_OFF = "approval.mode=off"
NO_MODEL = "No model is configured yet."
MODEL_SETUP_STEPS = """\
1. Install a provider and set its key:  pip install 'toolfold[anthropic]'; export ANTHROPIC_API_KEY=…
2. Choose the model:  toolfold config set agent.model anthropic:claude-sonnet-4-6  (or openai:…, ollama:…)
3. Or try it now, without a key and without a model:  toolfold chat --demo"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options that `run` and `chat` share, as given on the command line."""

    model: str = ""
    session: str = ""
    toolsets: tuple[str, ...] = ()
    max_steps: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    yes: bool = False

    def build_limits(self, config: Config) -> AgentLimits:
        """Return the agent's limits: the configured limits, overridden by the options of the command line."""
        from toolfold.agent import AgentLimits

        names = ("max_steps", "max_tokens", "max_seconds", "max_cost")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return replace(AgentLimits.from_settings(config.agent), **given)

    def apply_to(self, invocation: Invocation) -> Invocation:
        """Return the invocation unchanged or, if --yes was given, a copy with approval turned off."""
        return invocation.with_overrides(self.overrides)

    @property
    def overrides(self) -> list[str]:
        """Return the settings that the options replace, as KEY=VALUE."""
        return [_APPROVAL_OFF] if self.yes else []


_OPTIONS = (
    click.option(
        "--model",
        default="",
        metavar="PROVIDER:MODEL",
        help="Model to use, as PROVIDER:MODEL. Default: the setting agent.model.",
    ),
    click.option(
        "--local",
        is_flag=True,
        help="Use the small model of toolfold[local] on this machine, without an API key or network.",
    ),
    click.option(
        "--session",
        default="",
        metavar="ID",
        help="Resume the session with this id; `last` for the most recent session.",
    ),
    click.option(
        "--toolset",
        "--toolsets",
        "toolsets",
        multiple=True,
        metavar="NAME[,NAME]",
        help="Allow only these toolsets. Repeatable.",
    ),
    click.option(
        "--max-steps",
        type=click.IntRange(1),
        help="Maximum number of model calls per message.",
    ),
    click.option(
        "--max-tokens",
        type=click.IntRange(1),
        help="Maximum number of tokens, sent and received, per message.",
    ),
    click.option(
        "--max-seconds",
        type=click.FloatRange(0, min_open=True),
        help="Maximum number of seconds that the agent works on a message.",
    ),
    click.option(
        "--max-cost", type=click.FloatRange(0), help="Cost limit per message in US dollars; 0 for no limit."
    ),
    click.option(
        "--yes",
        is_flag=True,
        help="Run calls without approval, as `approval.mode: off` does. Calls that are always blocked, "
        "denied by a rule, or change the settings of Toolfold are still refused.",
    ),
)


def agent_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that adds the options of `run` and `chat` to a command, as its argument `options`."""
    names = [each.name for each in fields(AgentOptions)]

    @functools.wraps(command)
    def call_with_options(*args: Any, **values: Any) -> Any:
        given = {name: values.pop(name) for name in names}
        if values.pop("local"):
            given["model"] = _choose_local_model(given["model"])
        given["toolsets"] = tuple(
            name.strip() for text in given["toolsets"] for name in text.split(",") if name.strip()
        )
        if given["session"] and given["toolsets"]:
            raise click.UsageError("a resumed session keeps its toolsets: omit --toolset or --session")
        return command(*args, options=AgentOptions(**given), **values)

    decorated: Callable[..., Any] = call_with_options
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def _choose_local_model(model: str) -> str:
    from toolfold.models.local_models import DEFAULT_MODEL, PROVIDER_NAME

    if model:
        raise click.UsageError("--local already chooses a model: use either --local or --model")
    return f"{PROVIDER_NAME}:{DEFAULT_MODEL}"


class AgentOpener:
    """Opens agents for new or stored sessions, all with the same runtime and session store."""

    def __init__(
        self,
        runtime: Runtime,
        store: SessionStore,
        options: AgentOptions,
        *,
        asker: Asker | None = None,
        client: ModelClient | None = None,
    ) -> None:
        """Create an opener; a model client passed as `client` replaces the configured model."""
        self.runtime, self.store, self.options = runtime, store, options
        self._asker, self._client = asker, client

    def open_first(self) -> Agent:
        """Open the stored session that --session names, or a new session if the option is not given."""
        if not self.options.session:
            return self.open_new(self.options.model)
        record = find_session(self.store, self.options.session)
        return self.open_stored(record, self.options.model)

    @property
    def client_model(self) -> str:
        """Return PROVIDER:MODEL of the model client passed to the constructor; empty if none was passed."""
        return f"{self._client.name}:{self._client.model}" if self._client else ""

    async def change_model(self, agent: Agent, name: str) -> None:
        """Continue the agent's session with another model, named as PROVIDER:MODEL.

        The name `client_model` stands for the client that was passed to the constructor.
        """
        client = self._client if name == self.client_model else None
        await agent.change_model(client or name)

    def open_new(self, model: str = "") -> Agent:
        """Open a new session."""
        from toolfold.agent import Agent

        toolsets = self.options.toolsets or None
        return Agent(
            self._client or model,
            toolsets=toolsets,
            runtime=self.runtime,
            store=self.store,
            limits=self.options.build_limits(self.runtime.config),
            asker=self._asker,
        )

    def open_stored(self, record: SessionRecord, model: str = "") -> Agent:
        """Open a stored session, by default with the model that it used last."""
        from toolfold.agent import Agent

        return Agent(
            self._client or model,
            session_id=record.id,
            runtime=self.runtime,
            store=self.store,
            limits=self.options.build_limits(self.runtime.config),
            asker=self._asker,
        )


def find_session(store: SessionStore, text: str) -> SessionRecord:
    """Return the stored session for an id, the beginning of an id, or `last`. Raises NotFound.

    `last` is the session with messages that was used last.
    """
    known = store.list_sessions(limit=MAX_LISTED_SESSIONS)
    if text == LAST_SESSION:
        used = next((record for record in known if record.turns), None)
        if used is None:
            raise NotFound("there is no stored session with messages yet.")
        return used
    found = [record for record in known if record.id == text] or [
        record for record in known if record.id.startswith(text)
    ]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} sessions start with" if found else "there is no session"
    raise NotFound(f"{problem} {text!r}. `toolfold sessions list` lists all sessions.")
