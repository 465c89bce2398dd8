"""The settings of who may use a server, and over what kind of connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from hark.errors import InvalidSetting
from hark.settings.describing import Part, about

MIN_SECRET_BYTES = 32
"""Of a secret that HS256 signs with: a shorter one can be found by trying (RFC 7518, 3.2)."""
_A_FILE = "the path of a file"
_KEYS = ("jwt_secret", "jwt_secret_file", "jwt_public_keys")
ALIAS = " (alias)"
"""How the source of a setting ends that has another server's name."""


Origin = Annotated[str, Meta(pattern=r"^(\*|https?://[^/?#@\s]+)\Z")]


class Auth(Part, frozen=True):
    """Who may use the server: those with an API token, or with a JWT."""

    required: Annotated[
        bool,
        about(
            "Let nobody in without a token, even while there are no tokens; else a server asks for them when there is "
            "a file of tokens, or JWT are enabled."
        ),
    ] = False
    tokens_file: Annotated[
        str,
        about(
            "The file of API tokens, which `hark token` writes; empty: `tokens.json` under `data`. Naming it means "
            "`required`.",
            expected=_A_FILE,
        ),
    ] = ""
    jwt_enabled: Annotated[bool, about("Accept JWT that one of the keys below verifies.", "JWT_ENABLED")] = False
    jwt_secret: Annotated[
        str,
        about(
            "The secret that JWT are signed with by HS256. A file keeps it better: `auth.jwt_secret_file`.",
            "JWT_SECRET",
            expected="at least 32 bytes (make them with: openssl rand -hex 32)",
            secret=True,
        ),
    ] = ""
    jwt_secret_file: Annotated[
        str,
        about("The file of the secret that JWT are signed with by HS256, at least 32 bytes.", expected=_A_FILE),
    ] = ""
    jwt_public_keys: Annotated[
        tuple[str, ...],
        about(
            "Files of public keys that verify JWT, each a PEM file or a JWKS: RSA keys for RS256, Ed25519 keys for "
            "EdDSA; in the environment separated by commas.",
            expected="a list of paths of files",
        ),
    ] = ()
    jwt_issuer: Annotated[
        str, about("What the claim `iss` of a JWT must be; empty: anything.", "JWT_ISSUER", expected="text")
    ] = ""
    jwt_audience: Annotated[
        str, about("What the claim `aud` of a JWT must be or contain; empty: anything.", "JWT_AUDIENCE")
    ] = ""
    jwt_leeway_seconds: Annotated[
        int,
        Meta(ge=0, le=3600),
        about("Seconds by which the clock of whoever issues JWT may differ.", "JWT_CLOCK_SKEW"),
    ] = 30
    public_metrics: Annotated[bool, about("Answer `/metrics` without a token, where everything else needs one.")] = (
        False
    )

    def __repr__(self) -> str:
        """Hide the secret: settings end up in logs and tracebacks."""
        shown = (name for name in self.__struct_fields__ if name != "jwt_secret")
        return f"Auth({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)}, jwt_secret=******)"


class Tls(Part, frozen=True):
    """The certificate of the server; with one it speaks HTTPS."""

    certificate: Annotated[
        str,
        about(
            "The PEM file of the server's certificate and of those between it and the authority; empty: no TLS.",
            expected=_A_FILE,
        ),
    ] = ""
    key: Annotated[
        str, about("The PEM file of the certificate's private key, without a password.", expected=_A_FILE)
    ] = ""


class Cors(Part, frozen=True):
    """Pages of other sites that may use the server."""

    origins: Annotated[
        tuple[Origin, ...],
        about(
            "Origins of pages of other sites that may use the server, such as `https://tools.example`, or `*` for all; "
            "empty: none may. In the environment separated by commas.",
            expected="a list of origins (https://host or https://host:port), or *",
        ),
    ] = ()


class Audit(Part, frozen=True):
    """Where it is written down what administrators did."""

    file: Annotated[
        str,
        about(
            "A file that gets every record of the audit log as a line of JSON, beside the log; empty: none.",
            expected=_A_FILE,
        ),
    ] = ""


def check_security(auth: Auth, tls: Tls, sources: Mapping[str, str]) -> None:
    """Refuse halves of a whole, when a server starts; raises `InvalidSetting`.

    Not when settings are loaded: workers load them too, among the variables of an application that may have a
    JWT_SECRET of its own.
    """
    given = [f"auth.{name}" for name in _KEYS if getattr(auth, name)]
    enabled = sources["auth.jwt_enabled"]
    if auth.jwt_enabled and not given:
        raise InvalidSetting(
            f"setting auth.jwt_enabled: {enabled} says true, but there is no key to verify JWT with; "
            "give auth.jwt_secret_file (HS256) or auth.jwt_public_keys (RS256, EdDSA)"
        )
    if auth.jwt_enabled and auth.jwt_secret and auth.jwt_secret_file:
        raise InvalidSetting("setting auth.jwt_secret: there is auth.jwt_secret_file too; leave one of them out")
    for name in given:
        if enabled == "default" and not sources[name].endswith(ALIAS):
            raise InvalidSetting(
                f"setting {name}: {sources[name]} gives it, but nothing says whether JWT are accepted; "
                "set auth.jwt_enabled to true or to false"
            )
    for one, other in (("certificate", "key"), ("key", "certificate")):
        if getattr(tls, one) and not getattr(tls, other):
            raise InvalidSetting(
                f"setting tls.{one}: {sources[f'tls.{one}']} gives it, but there is no tls.{other}; "
                "a certificate and its key belong together"
            )


def security_notes(auth: Auth, sources: Mapping[str, str], env: Mapping[str, str]) -> Iterator[str]:
    """Say which variables about JWT have no effect: some are for other servers, one may be for another program."""
    enabled = sources["auth.jwt_enabled"]
    if not auth.jwt_enabled and enabled == "default" and sources["auth.jwt_secret"].endswith(ALIAS):
        yield "JWT_SECRET has no effect: JWT are not accepted unless JWT_ENABLED is true"
    if auth.jwt_enabled and enabled.endswith(ALIAS):
        known = {source.removesuffix(ALIAS) for source in sources.values()}
        for variable in sorted(env):
            if variable.startswith("JWT_") and variable not in known:
                yield f"{variable} is not a setting and has no effect; docs/security.md says what verifies JWT"
