"""The `tts` toolset: convert text to speech in a workspace file.

The programs espeak-ng and piper run on this machine; a service with OpenAI's speech interface needs a key.
They write WAV files, which ffmpeg converts to other formats. Text is passed to a program by its standard
input, so that it cannot be taken for an option.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolfold.config.speech_settings import SpeechSettings
from toolfold.core.errors import CallError, shorten
from toolfold.core.types import CallContext, Effect, Json, Meaning, Source, Tool
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin._builtin import build_builtin_tool
from toolfold.tools.files import Workspace

SOURCE = Source("builtin", "tts")
MAX_TEXT_CHARS = 5_000
MAX_AUDIO_BYTES = 50_000_000
OVERHEAD_TIMEOUT_S = 30.0
DEFAULT_REMOTE_VOICE = "alloy"
_FORMATS = {
    ".wav": ("wav", re.compile(rb"RIFF.{4}WAVE", re.DOTALL)),
    ".mp3": ("mp3", re.compile(rb"ID3|\xff[\xe2-\xff]")),
    ".opus": ("opus", re.compile(rb"OggS")),
}
"""Name of each format in the interface of speech services and in ffmpeg, and the start of its files."""
_VOICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,39}")

_TEXT_TO_SPEECH: Json = {
    "description": "Speak a text: write it as speech to an audio file in the workspace.",
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT_CHARS},
            "path": {
                "type": "string",
                "default": "speech.wav",
                "description": "New file: .wav, .mp3 or .opus; a number is added to the name if it is taken.",
            },
            "voice": {
                "type": "string",
                "maxLength": 40,
                "description": "Name of a voice, or a language such as en or de.",
            },
        },
        "required": ["text"],
        "additionalProperties": False,
    },
}


class SpeechFailed(CallError):
    """Raised when text could not be converted to speech, or no speech program or service is available."""


def tools(services: Services) -> list[Tool]:
    """Return the tool `text_to_speech`."""
    speech = SpeechTools(services.speech, services.environment, services.workspace, services.outside_text)
    return [
        build_builtin_tool(
            name="text_to_speech",
            toolset="tts",
            schema=_TEXT_TO_SPEECH,
            handler=speech.speak,
            check_fn=speech.check,
            emoji="🔊",
            effects=speech.effects,
            judged_as={"path": Meaning.PATH, "text": Meaning.NOTE, "voice": Meaning.NOTE},
            precheck=speech.check_call,
            timeout=services.speech.timeout_seconds + OVERHEAD_TIMEOUT_S,
            synonyms=("read aloud", "voice", "narrate", "audio", "say", "mp3"),
            source=SOURCE,
        )
    ]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SpeechTools:
    """Handler and availability check of the tool `text_to_speech`."""

    settings: SpeechSettings
    environment: Mapping[str, str]
    workspace: Workspace
    outside_text: OutsideText

    @property
    def effects(self) -> tuple[Effect, ...]:
        """Return the effects of a call, including spending if a paid service is used."""
        paid = (Effect.SPEND,) if self._choose_backend() == "remote" else ()
        return (Effect.WRITE, Effect.NETWORK, *paid)

    def check(self) -> bool:
        """Return True if speech synthesis is available. Raises SpeechFailed with the reason otherwise."""
        backend = self._choose_backend()
        if backend == "remote" and self.settings.key_env and not self._key():
            raise SpeechFailed(f"The key of the speech service is missing: set {self.settings.key_env}.")
        if backend == "piper" and self.settings.piper_model is None:
            raise SpeechFailed("piper needs a voice: set speech.piper_model to a file that ends with .onnx.")
        if backend != "remote":
            _find_program("espeak-ng" if backend == "espeak" else "piper")
        return True

    def check_call(self, args: Json, _: CallContext) -> None:
        """Raise an error if the file may not be written, the voice is invalid, or a secret would be sent."""
        self.check()
        path, voice = args.get("path", "speech.wav"), args.get("voice") or self.settings.voice
        ending = _get_ending(path)
        if ending != ".wav" and self._choose_backend() != "remote":
            _find_converter(ending)
        self.workspace.resolve_for_writing(path)
        if voice and not _VOICE.fullmatch(voice):
            raise SpeechFailed(f"{shorten(voice, 60)!r} is not the name of a voice.")
        if self._choose_backend() == "remote":
            self.outside_text.require_no_secret(args["text"], "The text")

    async def speak(self, args: Json, _: CallContext) -> Json:
        """Convert text to speech and write it to a workspace file."""
        self.check_call(args, _)
        path, voice = args.get("path", "speech.wav"), args.get("voice") or self.settings.voice
        backend = self._choose_backend()
        ending = _get_ending(path)
        audio = await self._produce(backend, args["text"], voice, ending)
        if not _FORMATS[ending][1].match(audio):
            raise SpeechFailed(
                f"{backend} did not return {ending.removeprefix('.').upper()} audio. Nothing was written."
            )
        written = await asyncio.to_thread(self.workspace.write_new_file, path, audio)
        return {"path": written, "bytes": len(audio), "backend": backend}

    async def _produce(self, backend: str, text: str, voice: str, ending: str) -> bytes:
        if backend == "remote":
            return await self._request(text, voice or DEFAULT_REMOTE_VOICE, ending)
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "speech.wav"
            if backend == "espeak":
                command = [_find_program("espeak-ng"), "-w", str(file), "--stdin"]
                command += ["-v", voice] if voice else []
            else:
                model = str(self.settings.piper_model)
                command = [_find_program("piper"), "--model", model, "--output_file", str(file)]
            await _run(command, text, self.settings.timeout_seconds)
            if ending != ".wav":
                spoken, file = file, file.with_suffix(ending)
                options = ["-nostdin", "-loglevel", "error", "-i", str(spoken), "-f", _FORMATS[ending][0]]
                command = [_find_converter(ending), *options, str(file)]
                await _run(command, "", self.settings.timeout_seconds)
            return await asyncio.to_thread(_read_audio, file)

    async def _request(self, text: str, voice: str, ending: str) -> bytes:
        from toolfold.tools.internet.address_policy import AddressPolicy
        from toolfold.tools.internet.service_client import ServiceClient

        payload = {"model": self.settings.model, "voice": voice, "input": text}
        payload["response_format"] = _FORMATS[ending][0]
        headers = {"Accept": "audio/*"}
        if key := self._key():
            headers["Authorization"] = f"Bearer {key}"
        client = ServiceClient(
            name="speech service",
            policy=AddressPolicy.for_service(),
            timeout_s=self.settings.timeout_seconds,
            max_bytes=MAX_AUDIO_BYTES,
            mark=self.outside_text.mark,
            error=SpeechFailed,
        )
        return (await client.request(self.settings.url, payload=payload, headers=headers)).data

    def _choose_backend(self) -> str:
        if self.settings.backend != "auto":
            return self.settings.backend
        if self.settings.piper_model is not None:
            return "piper"
        return "remote" if self._key() else "espeak"

    def _key(self) -> str:
        return self.environment.get(self.settings.key_env, "").strip() if self.settings.key_env else ""


def _get_ending(path: str) -> str:
    """Return the ending of an audio file's name. Raises SpeechFailed if it is not a supported format."""
    ending = Path(path).suffix.lower()
    if ending not in _FORMATS:
        raise SpeechFailed(f"The name of the audio file must end with one of {', '.join(_FORMATS)}.")
    return ending


def _find_converter(ending: str) -> str:
    """Return the path of ffmpeg. Raises SpeechFailed if it is missing."""
    found = shutil.which("ffmpeg")
    if found is None:
        raise SpeechFailed(
            f"The program ffmpeg, which converts speech to {ending}, is missing. Use a name that ends with"
            " .wav, or tell the user to install ffmpeg."
        )
    return found


def _find_program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SpeechFailed(
            f"The program {name} is missing. Install it, or set speech.backend to `remote` (needs a key)."
        )
    return found


async def _run(command: Sequence[str], text: str, limit_s: float) -> None:
    """Run a program with text as input. Raises SpeechFailed if it fails or does not end in time."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=null, stderr=pipe)
    try:
        async with asyncio.timeout(limit_s):
            _, problem = await process.communicate(text.encode())
    except TimeoutError:
        raise SpeechFailed(f"{Path(command[0]).name} took longer than {limit_s:g} s.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        reason = shorten(problem.decode(errors="replace").strip(), 200)
        raise SpeechFailed(f"{Path(command[0]).name} failed: {reason}")


def _read_audio(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_AUDIO_BYTES + 1)
    except FileNotFoundError:
        raise SpeechFailed("The speech program produced no audio.") from None
    if len(data) > MAX_AUDIO_BYTES:
        raise SpeechFailed(f"The speech has more than {MAX_AUDIO_BYTES:,} bytes. Use a shorter text.")
    return data
