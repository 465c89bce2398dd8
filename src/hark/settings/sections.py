"""Settings of S3, workers, authentication, TLS, CORS and the audit log; helpers of all definitions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hark.errors import InvalidSetting

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]


def about(meaning: str, *aliases: str, expected: str = "", secret: bool = False, env: str = "") -> Meta:
    """Describe a setting. If several aliases are set, the first one wins.

    An alias is an environment variable, or a name in hark.toml if it contains a dot. `env` replaces the variable name
    that would be derived from the position in the tree.
    """
    extra = {"aliases": aliases, "expected": expected, "secret": secret, "env": env}
    return Meta(description=meaning, extra=extra)


HIDDEN = "******"


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of all groups of settings."""

    def __repr__(self) -> str:
        """Hide secrets: settings end up in logs and tracebacks."""
        metas = {field.name: getattr(field.type, "__metadata__", ()) for field in msgspec.structs.fields(self)}
        secret = {name for name, found in metas.items() if any((meta.extra or {}).get("secret") for meta in found)}
        shown = (f"{name}={HIDDEN if name in secret else repr(getattr(self, name))}" for name in metas)
        return f"{type(self).__name__}({', '.join(shown)})"


Address = tuple[str, int]
"""A host name or a numeric address, and a port."""

_MAX_PORTS = 1024
_ENTRY = re.compile(
    r"(?:\[(?P<numeric>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/@]+)):(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?"
)


def peer_addresses(entry: str) -> list[Address]:
    """All addresses of one entry. Raises `ValueError` if the entry is invalid."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not host:port")
    host = match["numeric"] or match["name"]
    first = int(match["first"])
    last = int(match["last"] or first)
    if not 1 <= first <= last <= 65_535 or last - first >= _MAX_PORTS:
        raise ValueError(f"{entry!r}: expected ports from 1 to 65535 in ascending order, at most {_MAX_PORTS} of them")
    return [(host, port) for port in range(first, last + 1)]


Bytes = Annotated[int, Meta(ge=1, le=1_099_511_627_776)]
Dollars = Annotated[float, Meta(ge=0, le=1_000_000)]


class S3(Part, frozen=True):
    """Requests to the bucket, and the data that is kept there."""

    endpoint_url: Annotated[
        str,
        Meta(pattern=r"^(https?://\S+)?\Z"),
        about(
            "URL of the S3 API. Empty: from the engine URL or AWS configuration.",
            expected="a URL that starts with http:// or https://",
        ),
    ] = ""
    region: Annotated[
        str,
        Meta(pattern=r"^[a-zA-Z0-9-]*\Z"),
        about(
            "Region of the bucket. Empty: from the engine URL or AWS configuration.",
            expected="the name of a region, such as eu-west-1",
        ),
    ] = ""
    request_timeout_ms: Annotated[
        int,
        Meta(ge=100, le=3_600_000),
        about("Time limit of an S3 request, in milliseconds, plus 1 second per megabyte."),
    ] = 10_000
    retry_timeout_ms: Annotated[
        int, Meta(ge=100, le=3_600_000), about("Time limit for the outcome of a commit before a 503, in milliseconds.")
    ] = 20_000
    linger_ms: Annotated[
        float,
        Meta(ge=0, le=10_000),
        about("Maximum wait of a commit for a shared request under load, in milliseconds."),
    ] = 50.0
    snapshot_records: Annotated[int, Meta(ge=1, le=1_000_000), about("Log records between snapshots.")] = 1000
    snapshot_bytes: Annotated[Bytes, about("Log bytes between snapshots.")] = 67_108_864
    grace_seconds: Annotated[
        int,
        Meta(ge=1, le=31_536_000),
        about("Retention of log records that snapshots replace, in seconds. Fixed when the store is created."),
    ] = 3600
    skew_margin_ms: Annotated[
        int, Meta(ge=0, le=3_600_000), about("Tolerated clock difference between processes, in milliseconds.")
    ] = 1000
    cache_bytes: Annotated[
        int, Meta(ge=0, le=1_099_511_627_776), about("Maximum size of the payload cache per process, in bytes.")
    ] = 268_435_456
    max_record_bytes: Annotated[
        int, Meta(ge=65_536, le=1_073_741_824), about("Size at which a log record is full, in bytes.")
    ] = 33_554_432
    put_dollars: Annotated[Dollars, about("Price of a million PUT requests, for cost estimates.")] = 5.0
    get_dollars: Annotated[Dollars, about("Price of a million GET requests, for cost estimates.")] = 0.4


Strategy = Literal["adaptive", "fixed"]
Interval = Annotated[float, Meta(gt=0, le=86_400_000)]

_INTERVAL = "a number of milliseconds above 0, at most 86400000"

_OLD_NAMES = ("worker.poll_interval", "HARK_POLL_INTERVAL", "QO_POLL_INTERVAL")
POLL_INTERVAL = frozenset(_OLD_NAMES)
"""Old names of `worker.polling.interval_ms`. Each of them also sets the strategy to `fixed`."""


class Polling(Part, frozen=True):
    """How often an idle worker polls for work, and a process on S3 polls its bucket."""

    strategy: Annotated[
        Strategy,
        about(
            "Polling interval: `adaptive` (grows while idle) or `fixed`.",
            "QO_POLLING_STRATEGY",
            env="HARK_POLLING_STRATEGY",
        ),
    ] = "adaptive"
    min_interval_ms: Annotated[
        Interval,
        about(
            "Adaptive: initial interval, in milliseconds.",
            "QO_POLLING_MIN_INTERVAL_MS",
            env="HARK_POLLING_MIN_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 100
    max_interval_ms: Annotated[
        Interval,
        about(
            "Adaptive: maximum interval, in milliseconds.",
            "QO_POLLING_MAX_INTERVAL_MS",
            env="HARK_POLLING_MAX_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 5000
    backoff_multiplier: Annotated[
        float,
        Meta(gt=1, le=1000),
        about(
            "Adaptive: growth factor of the interval.",
            "QO_POLLING_BACKOFF_MULTIPLIER",
            env="HARK_POLLING_BACKOFF_MULTIPLIER",
            expected="a number above 1, at most 1000",
        ),
    ] = 2.0
    interval_ms: Annotated[
        Interval,
        about(
            "Fixed: interval in milliseconds. The `poll_interval` aliases also set the strategy to `fixed`.",
            "QO_POLLING_INTERVAL_MS",
            *_OLD_NAMES,
            env="HARK_POLLING_INTERVAL_MS",
            expected=_INTERVAL,
        ),
    ] = 500


class Worker(Part, frozen=True):
    """Defaults for a worker; its run options override them."""

    concurrency: Annotated[int, Meta(ge=1, le=10_000), about("Maximum number of concurrent tasks.")] = 10
    grace_seconds: Annotated[
        float,
        Meta(ge=0, le=86_400),
        about("Time for running tasks to finish at shutdown, in seconds. Then their messages are released."),
    ] = 30
    lease_seconds: Annotated[
        int, Meta(ge=1, le=86_400), about("Lease of a running task, renewed by the worker, in seconds.")
    ] = 30
    unknown_task_seconds: Annotated[
        int,
        Meta(ge=0, le=2_592_000),
        about("How long a worker hands back a task that it does not know, in seconds. Then it dead-letters it."),
    ] = 3600
    health_port: Annotated[int, Meta(ge=0, le=65_535), about("Port for `/health` and `/metrics`. 0: none.")] = 0
    polling: Polling = Polling()


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

    required: Annotated[bool, about("Require authentication even without a token file or JWT.")] = False
    tokens_file: Annotated[
        str,
        about(
            "File of API tokens. Setting it requires authentication. Empty: `tokens.json` in `data`.", expected=_A_FILE
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
    jwt_secret_file: Annotated[str, about("File that contains the HS256 secret.", expected=_A_FILE)] = ""
    jwt_public_keys: Annotated[
        tuple[str, ...],
        about("Public key files, PEM or JWKS: RSA (RS256) or Ed25519 (EdDSA).", expected="a list of paths of files"),
    ] = ()
    jwt_issuer: Annotated[str, about("Required `iss` claim. Empty: any.", "JWT_ISSUER", expected="text")] = ""
    jwt_audience: Annotated[str, about("Required value in the `aud` claim. Empty: any.", "JWT_AUDIENCE")] = ""
    jwt_leeway_seconds: Annotated[
        int, Meta(ge=0, le=3600), about("Accepted clock difference to the JWT issuer, in seconds.", "JWT_CLOCK_SKEW")
    ] = 30
    public_metrics: Annotated[bool, about("Serve `/metrics` without authentication.")] = False


class Tls(Part, frozen=True):
    """The certificate of the server. With a certificate the server uses HTTPS."""

    certificate: Annotated[str, about("PEM file with the certificate chain. Empty: no TLS.", expected=_A_FILE)] = ""
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

    file: Annotated[str, about("File for audit records as JSON lines, in addition to the log.", expected=_A_FILE)] = ""


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
    """Warn about JWTs of others that would be accepted, and about JWT_* variables that have no effect."""
    missing = [name for name in ("jwt_issuer", "jwt_audience") if auth.jwt_enabled and not getattr(auth, name)]
    if missing:
        yield (
            f"{' and '.join(f'auth.{name}' for name in missing)} not set: JWTs that were made for other services with "
            "the same key are accepted"
        )
    enabled = sources["auth.jwt_enabled"]
    if not auth.jwt_enabled and enabled == "default" and sources["auth.jwt_secret"].endswith(ALIAS):
        yield "JWT_SECRET has no effect: set JWT_ENABLED=true to accept JWTs, or JWT_ENABLED=false to hide this warning"
    if auth.jwt_enabled and enabled.endswith(ALIAS):
        known = {source.removesuffix(ALIAS) for source in sources.values()}
        for variable in sorted(env):
            if variable.startswith("JWT_") and variable not in known:
                yield (f"{variable} is not a setting and has no effect; docs/security.md lists the settings for JWTs")
