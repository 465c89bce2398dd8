"""Where a request comes from, as browsers say it: pages of other sites are refused, unless the settings name them.

A page of any site can make a browser send requests to any address that its user can reach, loopback too. Browsers say
so, with `Origin` and `Sec-Fetch-Site`; other programs send neither and are not concerned. What a page could not read is
refused as well: a pop is a GET, and takes messages.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from hark.errors import Forbidden
from hark.http.responses import Header

Headers = Mapping[bytes, bytes]

ANY_ORIGIN = "*"
_VARY = (b"vary", b"origin")
_PREFLIGHT = (
    (b"access-control-allow-methods", b"GET, POST, PUT, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, x-request-id"),
    (b"access-control-max-age", b"600"),
)
_EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after")
_OTHER_SITES = (b"cross-site", b"same-site")
_KEPT_HOSTS = 1000
_LONGEST_KEPT_HOST = 255


class Sites:
    """Which pages may talk to this server, and under which names it may be reached."""

    def __init__(self, origins: Sequence[str], hosts: Sequence[str], *, check_hosts: bool) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        self._any = ANY_ORIGIN in origins
        self._hosts = frozenset(host.lower() for host in hosts)
        self._check_hosts = check_hosts
        """Whether a name that is not known is refused: where nobody has to show a token, a page may give its own name
        the address of this server (DNS rebinding), and its browser takes the two for one site."""
        self.good_hosts: set[bytes | None] = {None}
        """Names that were found to be good; None: old programs give none."""

    def check(self, headers: Headers, *, page: bool) -> None:
        """Refuse requests of other sites' pages. `page`: what anybody may see; links from elsewhere may lead there."""
        origin = headers.get(b"origin")
        if origin is not None:
            if not self.allows(origin) and not _is_own(origin, headers):
                raise _refused(origin.decode("latin-1"))
            return
        # Without an origin it is no request that a page makes with CORS: a picture, a frame, a link.
        follows_link = page and headers.get(b"sec-fetch-mode") == b"navigate"
        if headers.get(b"sec-fetch-site") in _OTHER_SITES and not follows_link:
            raise _refused("another site")

    def check_host(self, host: bytes | None) -> None:
        """Refuse names that this server is not known by."""
        if host is None or not self._check_hosts:
            return
        if not self._is_good(host.decode("latin-1")):
            raise Forbidden(
                f"this server is not known by the name {host.decode('latin-1')!r}; use its address or localhost, "
                "or add the name to the setting allowed_hosts",
                code="host_not_allowed",
            )
        if len(self.good_hosts) < _KEPT_HOSTS and len(host) <= _LONGEST_KEPT_HOST:
            self.good_hosts.add(host)

    def _is_good(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name == "localhost" or name.endswith(".localhost") or name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    # CORS --------------------------------------------------------------------------------------------------

    def allows(self, origin: bytes) -> bool:
        """Whether the settings name the site of a page."""
        return self._any or origin in self._origins

    def is_foreign(self, headers: Headers) -> bool:
        """Whether a page of a site asks that the settings name: its cookies do not count."""
        origin = headers.get(b"origin")
        return origin is not None and not _is_own(origin, headers)

    def preflight(self, headers: Headers) -> tuple[Header, ...] | None:
        """What answers a browser that asks with OPTIONS before a page may ask; None: it is not such a question."""
        origin = headers.get(b"origin")
        if origin is None or b"access-control-request-method" not in headers:
            return None
        if not self.allows(origin):
            raise _refused(origin.decode("latin-1"))
        return (*self.cors_headers(headers), *_PREFLIGHT)

    def cors_headers(self, headers: Headers) -> tuple[Header, ...]:
        """What lets a page read the answer; nothing where the settings name no sites."""
        if not self._any and not self._origins:
            return ()
        origin = headers.get(b"origin")
        if origin is None or not self.allows(origin):
            return (_VARY,)
        shown = ANY_ORIGIN.encode() if self._any else origin
        return ((b"access-control-allow-origin", shown), _EXPOSED, _VARY)


def _is_own(origin: bytes, headers: Headers) -> bool:
    """Whether an origin is this server, by the name that the browser knows it by."""
    _, separator, place = origin.partition(b"://")
    return bool(separator) and place == headers.get(b"host")


def _refused(who: str) -> Forbidden:
    return Forbidden(
        f"pages of {who} may not use this server; add their origin to the setting cors.origins if they should",
        code="cross_origin",
    )
