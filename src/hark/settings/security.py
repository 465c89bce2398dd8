"""Settings for authentication, TLS, CORS and the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from hark.errors import InvalidSetting
from hark.settings.describing import Part, about

MIN_SECRET_BYTES = 32
"""Minimum length of an HS256 secret: a shorter one can be found by brute force (RFC 7518, 3.2)."""
_A_FILE = "the path of a file"
_KEYS = ("jwt_secret", "jwt_secret_file", "jwt_public_keys")
ALIAS = " (alias)"
"""Suffix of the source of a setting that was set by an alias."""


ANY_ORIGIN = "*"
"""Allows every web origin."""
Origin = Annotated[str, Meta(pattern=r"^(\*|https?://[^/?#@\s]+)\Z")]


class Auth(Part, frozen=True):
    """Authentication by API token or JWT."""

    required: Annotated[
        bool,
        about("Require authentication even without a token file or JWT."),
    ] = False
    tokens_file: Annotated[
        str,
        about(
            "File of API tokens. Setting it requires authentication. Empty: `tokens.json` in `data`.",
            expected=_A_FILE,
        ),
    ] = ""
    jwt_enabled: Annotated[bool, about("Accept JWTs that one of the keys below verifies.", "JWT_ENABLED")] = False
    jwt_secret: Annotated[
        str,
        about(
            "HS256 secret, at least 32 bytes. Prefer `auth.jwt_secret_file`.",
            "JWT_SECRET",
            expected="at least 32 bytes (make them with: openssl rand -hex 32)",
            secret=True,
        ),
    ] = ""
    jwt_secret_file: Annotated[
        str,
        about("File that contains the HS256 secret.", expected=_A_FILE),
    ] = ""
    jwt_public_keys: Annotated[
        tuple[str, ...],
        about(
            "Public key files, PEM or JWKS: RSA (RS256) or Ed25519 (EdDSA).",
            expected="a list of paths of files",
        ),
    ] = ()
    jwt_issuer: Annotated[str, about("Required `iss` claim. Empty: any.", "JWT_ISSUER", expected="text")] = ""
    jwt_audience: Annotated[str, about("Required value in the `aud` claim. Empty: any.", "JWT_AUDIENCE")] = ""
    jwt_leeway_seconds: Annotated[
        int,
        Meta(ge=0, le=3600),
        about("Accepted clock difference to the JWT issuer, in seconds.", "JWT_CLOCK_SKEW"),
    ] = 30
    public_metrics: Annotated[bool, about("Serve `/metrics` without authentication.")] = False

    def __repr__(self) -> str:
        """Hide the secret: settings end up in logs and tracebacks."""
        shown = (name for name in self.__struct_fields__ if name != "jwt_secret")
        return f"Auth({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)}, jwt_secret=******)"


class Tls(Part, frozen=True):
    """The certificate of the server. With a certificate the server uses HTTPS."""

    certificate: Annotated[
        str,
        about(
            "PEM file with the certificate chain. Empty: no TLS.",
            expected=_A_FILE,
        ),
    ] = ""
    key: Annotated[str, about("PEM file with the private key, without a password.", expected=_A_FILE)] = ""


class Cors(Part, frozen=True):
    """Other web sites whose pages can use the server."""

    origins: Annotated[
        tuple[Origin, ...],
        about(
            "Web origins that can use the API, such as `https://tools.example`. `*` (any) needs authentication.",
            expected="a list of origins (https://host or https://host:port), or *",
        ),
    ] = ()


class Audit(Part, frozen=True):
    """The audit log of administrative actions."""

    file: Annotated[
        str,
        about(
            "File for audit records as JSON lines, in addition to the log.",
            expected=_A_FILE,
        ),
    ] = ""


def check_security(auth: Auth, tls: Tls, sources: Mapping[str, str]) -> None:
    """Reject incomplete combinations of settings when a server starts. Raises `InvalidSetting`.

    This check is not part of loading: workers load settings too, and the environment of their application can contain
    an unrelated JWT_SECRET.
    """
    given = [f"auth.{name}" for name in _KEYS if getattr(auth, name)]
    enabled = sources["auth.jwt_enabled"]
    if auth.jwt_enabled and not given:
        raise InvalidSetting(
            f"setting auth.jwt_enabled: {enabled} is true, but no key to verify JWTs is set; "
            "set auth.jwt_secret_file (HS256) or auth.jwt_public_keys (RS256, EdDSA)"
        )
    if auth.jwt_enabled and auth.jwt_secret and auth.jwt_secret_file:
        raise InvalidSetting("setting auth.jwt_secret: auth.jwt_secret_file is set too; remove one of them")
    for name in given:
        if enabled == "default" and not sources[name].endswith(ALIAS):
            raise InvalidSetting(
                f"setting {name}: {sources[name]} sets it, but auth.jwt_enabled is not set; "
                "set auth.jwt_enabled to true or false"
            )
    for one, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(tls, one) and not getattr(tls, other):
            raise InvalidSetting(
                f"setting tls.{one}: {sources[f'tls.{one}']} sets it, but tls.{other} is not set; "
                "set both the certificate and its key"
            )


def security_notes(auth: Auth, sources: Mapping[str, str], env: Mapping[str, str]) -> Iterator[str]:
    """Warn about JWT_* variables that have no effect."""
    enabled = sources["auth.jwt_enabled"]
    if not auth.jwt_enabled and enabled == "default" and sources["auth.jwt_secret"].endswith(ALIAS):
        yield "JWT_SECRET has no effect: set JWT_ENABLED=true to accept JWTs, or JWT_ENABLED=false to hide this warning"
    if auth.jwt_enabled and enabled.endswith(ALIAS):
        known = {source.removesuffix(ALIAS) for source in sources.values()}
        for variable in sorted(env):
            if variable.startswith("JWT_") and variable not in known:
                yield (f"{variable} is not a setting and has no effect; docs/security.md lists the settings for JWTs")
