"""The tool `text_to_speech`, with the real espeak-ng and a speech service on this machine."""

from __future__ import annotations

import json
import shutil
import wave
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.internet.web_server import Page, WebServer, run_web_server
from toolfold import Answer, Runtime, ToolCall, ToolResult, open_runtime
from toolfold.agent import Agent
from toolfold.config import load_config
from toolfold.core.types import Effect
from toolfold.models.scripted import ScriptedProvider, ScriptedReply

needs_espeak = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="needs espeak-ng")
WAV = b"RIFF\x24\x00\x00\x00WAVEfmt rest"


class SpeechRuntimes(Protocol):
    """Opens runtimes with settings of the section `speech`."""

    def __call__(self, **speech: object) -> Runtime: ...


@pytest.fixture
def open_speech(home: Path, tmp_path: Path) -> Iterator[SpeechRuntimes]:
    with ExitStack() as stack:

        def open_here(**speech: object) -> Runtime:
            env = {"TOOLFOLD_HOME": str(home), "HOME": str(home), "VOICE_KEY": "s3cret-voice-key"}
            overrides = {"speech": speech}
            return stack.enter_context(
                open_runtime(
                    load_config(project=tmp_path, env=env, overrides=overrides),
                    approver=lambda _request: Answer.ONCE,
                )
            )

        yield open_here


@pytest.fixture(scope="module")
def server() -> Iterator[WebServer]:
    with run_web_server() as running:
        yield running


def speak(runtime: Runtime, **args: Any) -> ToolResult:
    return runtime.session(["tts"]).call_sync("text_to_speech", args)


@needs_espeak
def test_agent_converts_text_to_speech_with_espeak(open_speech: SpeechRuntimes, tmp_path: Path) -> None:
    runtime = open_speech(backend="espeak")
    found = runtime.retriever.answer(
        runtime.registry.snapshot(), "read this text aloud and save it as audio", mode="hybrid", limit=3
    )
    assert "text_to_speech" in [hit.name for hit in found.hits]
    calls = [ToolCall("text_to_speech", {"text": "--version is read, too", "path": "a.wav"}, "1")]
    agent = Agent(ScriptedProvider([ScriptedReply("", calls), "Done."]), runtime=runtime)
    assert agent.run_sync("Read it aloud").text == "Done."
    with wave.open(str(tmp_path / "a.wav")) as audio:
        assert audio.getnframes() / audio.getframerate() > 0.5


@needs_espeak
def test_speech_file_does_not_replace_an_existing_file(open_speech: SpeechRuntimes, tmp_path: Path) -> None:
    (tmp_path / "speech.wav").write_bytes(b"a song of the user")
    result = speak(open_speech(backend="espeak"), text="hello")
    assert json.loads(result.text)["path"] == "speech-2.wav"
    assert (tmp_path / "speech.wav").read_bytes() == b"a song of the user"


@needs_espeak
def test_text_to_speech_with_an_unknown_or_invalid_espeak_voice_fails_and_writes_no_file(
    open_speech: SpeechRuntimes, tmp_path: Path
) -> None:
    runtime = open_speech(backend="espeak")
    assert "espeak-ng failed" in str(speak(runtime, text="hello", voice="nosuchvoice").error)
    assert "not the name of a voice" in str(speak(runtime, text="hello", voice="-f/etc/passwd").error)
    assert list(tmp_path.glob("*.wav")) == []


def test_remote_speech_service_receives_text_voice_and_api_key_and_its_audio_is_written(
    open_speech: SpeechRuntimes, server: WebServer, tmp_path: Path
) -> None:
    server.pages["/speech"] = Page(WAV, "audio/wav")
    runtime = open_speech(backend="remote", url=f"{server.url}/speech", key_env="VOICE_KEY")
    result = speak(runtime, text="Grüße", voice="nova")
    assert result.ok, result.error
    assert (tmp_path / "speech.wav").read_bytes() == WAV
    request = server.requests[-1]
    assert request.headers["authorization"] == "Bearer s3cret-voice-key"
    sent = json.loads(request.body)
    assert (sent["input"], sent["voice"], sent["response_format"]) == ("Grüße", "nova", "wav")


@pytest.mark.parametrize(
    ("name", "wanted", "audio"), [("a.mp3", "mp3", b"ID3\x04"), ("a.opus", "opus", b"OggS")]
)
def test_format_of_the_speech_file_is_requested_from_the_service(
    open_speech: SpeechRuntimes, server: WebServer, tmp_path: Path, name: str, wanted: str, audio: bytes
) -> None:
    server.pages["/speech"] = Page(audio, "audio/mpeg")
    runtime = open_speech(backend="remote", url=f"{server.url}/speech", key_env="VOICE_KEY")
    assert speak(runtime, text="hello", path=name).ok
    assert json.loads(server.requests[-1].body)["response_format"] == wanted
    assert (tmp_path / name).read_bytes() == audio


@needs_espeak
@pytest.mark.parametrize(("name", "start"), [("a.mp3", (b"ID3", b"\xff")), ("a.opus", (b"OggS",))])
def test_speech_is_converted_with_ffmpeg_or_the_error_says_that_it_is_missing(
    open_speech: SpeechRuntimes, tmp_path: Path, name: str, start: tuple[bytes, ...]
) -> None:
    result = speak(open_speech(backend="espeak"), text="hello", path=name)
    if shutil.which("ffmpeg"):
        assert (tmp_path / name).read_bytes().startswith(start)
    else:
        assert "ffmpeg" in str(result.error)
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (Page(b'{"error": "no credit"}', status=402), "status 402"),
        (Page(b"<html>welcome", "audio/wav"), "did not return WAV audio"),
        (Page(b"", status=307, headers={"Location": "https://evil.example/"}), "status 307"),
    ],
)
def test_error_states_whether_the_speech_service_failed_or_sent_malformed_audio(
    open_speech: SpeechRuntimes, server: WebServer, tmp_path: Path, page: Page, problem: str
) -> None:
    server.pages["/speech"] = page
    runtime = open_speech(backend="remote", url=f"{server.url}/speech", key_env="VOICE_KEY")
    assert problem in str(speak(runtime, text="hello").error)
    assert list(tmp_path.glob("*.wav")) == []


def test_text_to_speech_is_marked_as_costing_money_only_if_it_may_use_a_remote_service(
    open_speech: SpeechRuntimes,
) -> None:
    def declares_cost(**speech: object) -> bool:
        tool = open_speech(**speech).registry.snapshot()["text_to_speech"]
        return Effect.SPEND in tool.effects

    assert declares_cost(backend="remote", key_env="VOICE_KEY")
    assert declares_cost(backend="auto", key_env="VOICE_KEY")
    assert not declares_cost(backend="espeak")


def test_text_to_speech_refuses_paths_outside_the_workspace_or_of_another_format(
    open_speech: SpeechRuntimes,
) -> None:
    runtime = open_speech(backend="remote", key_env="VOICE_KEY")
    assert "outside the workspace" in str(speak(runtime, text="hello", path="../a.wav").error)
    assert "must end with one of .wav, .mp3, .opus" in str(speak(runtime, text="hello", path="a.sh").error)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"backend": "remote", "key_env": "MISSING_VOICE_KEY"}, "set MISSING_VOICE_KEY"),
        ({"backend": "piper"}, "speech.piper_model"),
    ],
)
def test_reason_why_speech_is_unavailable_names_the_missing_api_key_or_model_setting(
    open_speech: SpeechRuntimes, settings: dict[str, str], reason: str
) -> None:
    status = open_speech(**settings).statuses(["text_to_speech"])["text_to_speech"]
    assert not status.available
    assert reason in status.reason
