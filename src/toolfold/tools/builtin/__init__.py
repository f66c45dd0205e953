"""The built-in tools, one module per toolset.

Each module exposes `tools(services) -> list[Tool]` and does nothing when imported. The runtime passes
everything a module needs in `Services`; modules read no settings themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from toolfold.config.homeassistant_settings import HomeAssistantSettings
from toolfold.config.images_settings import ImagesSettings
from toolfold.config.model_tool_settings import MixtureSettings, VisionSettings
from toolfold.config.speech_settings import SpeechSettings
from toolfold.config.training_settings import TrainingSettings
from toolfold.config.web_settings import MessagesSettings, WebSettings
from toolfold.core.errors import Refused
from toolfold.core.types import make_encodable
from toolfold.core.untrusted_text import PassageFinder, TextMarker, find_nothing, leave_unmarked
from toolfold.models.model_access import ModelAccess
from toolfold.tools.environments.environment_thread import EnvironmentThread
from toolfold.tools.files import Workspace
from toolfold.tools.internet.browser_pool import BrowserPool
from toolfold.tools.scheduled_jobs import ScheduledJobs
from toolfold.tools.skill_files import SkillLibrary

if TYPE_CHECKING:
    from toolfold.selection.retrieval.tool_search import Retriever

MAX_INLINE_CHARS = 2_000
"""Length of a text that is marked in the event loop; a longer one is marked in a thread."""


@dataclass(frozen=True, slots=True)
class OutsideText:
    """Functions that check untrusted text, such as web pages, and text sent to other machines."""

    mark_untrusted: TextMarker = leave_unmarked
    """Function that marks injected instructions in the result of a service."""
    contains_known_secret: Callable[[str], bool] = lambda _text: False
    """Function that returns True if a text contains a secret of this machine."""
    find_injections: PassageFinder = find_nothing
    """Function that finds injected instructions in text that must not be changed."""
    mark_untrusted_page: TextMarker = leave_unmarked
    """Function that marks injected instructions in a web page, most of which are full of orders to people."""

    async def mark(self, text: str) -> str:
        """Mark passages in the result of a service that look like instructions to the model."""
        return await _mark_in_thread(self.mark_untrusted, text)

    async def mark_page(self, text: str) -> str:
        """Mark passages of a web page that look like instructions to the model."""
        return await _mark_in_thread(self.mark_untrusted_page, text)

    def require_no_secret(self, text: str, what: str) -> None:
        """Raise Refused if text for another machine contains a secret of this machine."""
        if self.contains_known_secret(text):
            raise Refused(
                f"{what} contains a secret of this machine (the value of an environment variable), "
                "so nothing was sent. Leave the secret out."
            )


async def _mark_in_thread(mark: TextMarker, text: str) -> str:
    if len(text) <= MAX_INLINE_CHARS:
        return mark(make_encodable(text))
    return await asyncio.to_thread(mark, make_encodable(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Components and settings of the runtime that the built-in tools use."""

    workspace: Workspace
    terminal: EnvironmentThread | None = None
    """Environment that runs commands; None if there are no terminal tools."""
    max_command_s: float = 1_800.0
    """Maximum duration of a foreground command, whatever a model requests."""
    web: WebSettings = field(default_factory=WebSettings)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables, from which API keys of services are read."""
    outside_text: OutsideText = field(default_factory=OutsideText)
    messages: MessagesSettings = field(default_factory=MessagesSettings)
    images: ImagesSettings = field(default_factory=ImagesSettings)
    speech: SpeechSettings = field(default_factory=SpeechSettings)
    models: ModelAccess | None = None
    """Access to the configured models; None if there are no tools that ask models."""
    vision: VisionSettings = field(default_factory=VisionSettings)
    mixture: MixtureSettings = field(default_factory=MixtureSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    training_directory: Path | None = None
    """Directory of training runs; None if there are no tools for training."""
    homeassistant: HomeAssistantSettings = field(default_factory=HomeAssistantSettings)
    jobs: ScheduledJobs | None = None
    """Scheduled jobs of the user; None if there are no tools for scheduled jobs."""
    skills: SkillLibrary | None = None
    """Skills of the user and the project; None if there are no skill tools."""
    skill_search: Retriever | None = None
    """Function that ranks skills for a message; if None, skills are listed by name."""
    browser: BrowserPool | None = None
    """Browser for all sessions; None if there are no browser tools."""
    browser_timeout_s: float = 30.0
    """Time limit in seconds for opening a page."""
