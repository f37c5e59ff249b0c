"""The page at `/`, and the endpoints that only it uses."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from vitlab.serving.service import Service


def routes(service: Service) -> list[BaseRoute]:
    """What the application mounts besides its own endpoints."""
    return [Route("/", _page, methods=["GET"])]


async def _page(request: Request) -> Response:
    return RedirectResponse("/v1/models")
