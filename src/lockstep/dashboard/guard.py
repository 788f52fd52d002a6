"""Protection of the dashboard: a token, one method, and headers that confine the page."""

import secrets

from starlette.datastructures import MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; media-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware that answers 403 to a request without the token and 405 to a method other than GET."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it. Every response has the headers that confine the page."""
        assert scope["type"] == "http", "the server has neither websockets nor a lifespan"

        async def confine(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        given = QueryParams(scope["query_string"]).get("token", "")
        if not secrets.compare_digest(given.encode(errors="replace"), self._token):
            refusal = PlainTextResponse("The address needs the token that `lockstep dashboard` has printed.\n", 403)
            await refusal(scope, receive, confine)
        elif scope["method"] != "GET":
            await PlainTextResponse("The dashboard can only be read.\n", 405, {"Allow": "GET"})(scope, receive, confine)
        else:
            await self._app(scope, receive, confine)
