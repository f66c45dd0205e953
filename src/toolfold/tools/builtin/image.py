"""The `image_gen` toolset: generate images from a description as files in the workspace.

Speaks the interfaces of OpenAI and of fal. The key is sent to the service only; images that the service names
by URL are fetched without it, from the service itself or from public addresses.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from toolfold.config.images_settings import ImagesSettings
from toolfold.config.web_settings import WebSettings
from toolfold.core.errors import CallError
from toolfold.core.types import CallContext, Effect, Json, Meaning, Source, Tool
from toolfold.tools.builtin import OutsideText, Services
from toolfold.tools.builtin._builtin import build_builtin_tool
from toolfold.tools.files import Workspace
from toolfold.tools.internet.address_policy import AddressPolicy

if TYPE_CHECKING:
    from toolfold.tools.internet.fetching import Fetcher
    from toolfold.tools.internet.service_client import ServiceClient

SOURCE = Source("builtin", "image")
MAX_PROMPT_CHARS = 4_000
MAX_IMAGES = 4
MAX_RESPONSE_BYTES = 60_000_000
OVERHEAD_TIMEOUT_S = 60.0
_URLS = {"openai": "https://api.openai.com/v1/images/generations", "fal": "https://fal.run"}
_KEYS = {"openai": "OPENAI_API_KEY", "fal": "FAL_KEY"}
_MODELS = {"openai": "gpt-image-1", "fal": "fal-ai/flux/schnell"}
_SIZES = {
    "square": ("1024x1024", "square_hd"),
    "landscape": ("1536x1024", "landscape_4_3"),
    "portrait": ("1024x1536", "portrait_4_3"),
}
_SIGNATURES = {b"\x89PNG\r\n\x1a\n": ".png", b"\xff\xd8\xff": ".jpg", b"RIFF": ".webp"}

_IMAGE_GENERATE: Json = {
    "description": "Make pictures from a description and save them as files in the workspace.",
    "parameters": {
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "minLength": 1, "maxLength": MAX_PROMPT_CHARS},
            "shape": {"enum": list(_SIZES), "default": "square"},
            "count": {"type": "integer", "minimum": 1, "maximum": MAX_IMAGES, "default": 1},
            "name": {
                "type": "string",
                "pattern": "^[A-Za-z0-9_][A-Za-z0-9_-]{0,59}$",
                "default": "image",
                "description": "Name of the files without ending; a number is added if it is taken.",
            },
        },
        "required": ["prompt"],
        "additionalProperties": False,
    },
}


class ImageFailed(CallError):
    """Raised when no image was generated, or the image service is not configured."""


def tools(services: Services) -> list[Tool]:
    """Return the tool `image_generate`."""
    images = ImageTools(
        services.images, services.web, services.environment, services.workspace, services.outside_text
    )
    return [
        build_builtin_tool(
            name="image_generate",
            toolset="image_gen",
            schema=_IMAGE_GENERATE,
            handler=images.generate,
            check_fn=images.check,
            emoji="🎨",
            effects=(Effect.WRITE, Effect.NETWORK, Effect.SPEND),
            judged_as={
                **dict.fromkeys(_IMAGE_GENERATE["parameters"]["properties"], Meaning.NOTE),
                "name": Meaning.PATH,
            },
            precheck=images.check_call,
            timeout=services.images.timeout_seconds + OVERHEAD_TIMEOUT_S,
            synonyms=("draw", "paint", "picture", "illustration", "logo", "photo"),
            source=SOURCE,
        )
    ]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class ImageTools:
    """Handler and availability check of the tool `image_generate`."""

    settings: ImagesSettings
    web: WebSettings
    environment: Mapping[str, str]
    workspace: Workspace
    outside_text: OutsideText

    def check(self) -> bool:
        """Return True if the image service has a key. Raises ImageFailed with the missing variable if not."""
        if not self._key():
            raise ImageFailed(f"The key of the image service is missing: set {self._key_variable()}.")
        return True

    def check_call(self, args: Json, _: CallContext) -> None:
        """Raise an error if the image cannot be requested, or not be written to the workspace."""
        self.check()
        self.outside_text.require_no_secret(args["prompt"], "The description")
        self.workspace.resolve_for_writing(f"{args.get('name', 'image')}.png")

    async def generate(self, args: Json, _: CallContext) -> Json:
        """Generate images with the service and write them to the workspace."""
        self.check_call(args, _)
        answer = await self._request(args)
        listed = answer.get("data" if self.settings.interface == "openai" else "images")
        entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        if not entries:
            raise ImageFailed("The image service returned no image.")
        images = [await self._read_image(each) for each in entries[: args.get("count", 1)]]
        paths = [await self._write_image(args, number, data) for number, data in enumerate(images, 1)]
        return {"files": paths}

    async def _request(self, args: Json) -> Json:
        settings, is_fal = self.settings, self.settings.interface == "fal"
        count, size = args.get("count", 1), _SIZES[args.get("shape", "square")]
        model = settings.model or _MODELS[settings.interface]
        url = (settings.url or _URLS[settings.interface]).rstrip("/")
        payload: Json = {"prompt": args["prompt"]}
        if is_fal:
            url = f"{url}/{model}"
            payload |= {"num_images": count, "image_size": size[1]}
        else:
            payload |= {"model": model, "n": count, "size": size[0]}
        headers = {"Authorization": f"{'Key' if is_fal else 'Bearer'} {self._key()}"}
        return await self._client().request_object(url, payload=payload, headers=headers)

    async def _read_image(self, entry: Json) -> bytes:
        """Return the image in a service's response, which contains it as base64 text or as a URL."""
        url: Any = entry.get("url")
        encoded: Any = entry.get("b64_json")
        if isinstance(url, str) and url.startswith("data:"):
            encoded = url.partition(",")[2]
        if isinstance(encoded, str):
            try:
                return base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                raise ImageFailed("The image service sent an image that is not valid base64.") from None
        if not isinstance(url, str):
            raise ImageFailed("The image service returned no image.")
        document = (await self._image_fetcher(url).fetch(url)).require_success()
        if document.is_truncated:
            raise ImageFailed(f"The image has more than {MAX_RESPONSE_BYTES:,} bytes.")
        return document.data

    async def _write_image(self, args: Json, number: int, data: bytes) -> str:
        ending = next((end for start, end in _SIGNATURES.items() if data.startswith(start)), "")
        if not ending:
            raise ImageFailed("The image service returned something that is not a PNG, JPEG or WebP image.")
        name = args.get("name", "image")
        name = name if args.get("count", 1) == 1 else f"{name}-{number}"
        return await asyncio.to_thread(self.workspace.write_new_file, f"{name}{ending}", data)

    def _image_fetcher(self, url: str) -> Fetcher:
        """Return a fetcher for an image that the service names by URL: public, or of the service itself."""
        if urlsplit(url).netloc == urlsplit(self.settings.url).netloc:
            return self._client().fetcher(0)
        client = replace(self._client(), policy=AddressPolicy.allowing(self.web.private_networks))
        return client.fetcher(3)

    def _client(self) -> ServiceClient:
        from toolfold.tools.internet.service_client import ServiceClient

        return ServiceClient(
            name="image service",
            policy=AddressPolicy.for_service(),
            timeout_s=self.settings.timeout_seconds,
            max_bytes=MAX_RESPONSE_BYTES,
            mark=self.outside_text.mark,
            error=ImageFailed,
        )

    def _key_variable(self) -> str:
        return self.settings.key_env or _KEYS[self.settings.interface]

    def _key(self) -> str:
        return self.environment.get(self._key_variable(), "").strip()
