"""Verification of JWTs. The type of the key determines the algorithm, never the token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hark.access.tokens import ALL_QUEUES, Identity, check_queues, check_subject, read_secret
from hark.api.operations import Role
from hark.clock import SECOND
from hark.errors import Forbidden, InvalidInput, InvalidSetting, Unauthorized
from hark.settings.sections import MIN_SECRET_BYTES, Auth

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

Algorithm = Literal["HS256", "RS256", "EdDSA"]

_MIN_RSA_BITS = 2048
_NEEDED = "JWTs need the packages PyJWT and cryptography; install them with: pip install 'hark-mq[jwt]'"
_ALGORITHMS: dict[tuple[str | None, str | None], Algorithm] = {("RSA", None): "RS256", ("OKP", "Ed25519"): "EdDSA"}


class Key(msgspec.Struct, frozen=True):
    """A key with its algorithm and optionally its id."""

    algorithm: Algorithm
    material: bytes | RSAPublicKey | Ed25519PublicKey
    kid: str | None = None

    def __repr__(self) -> str:
        """Return a text without the key, which may be a secret."""
        return f"Key(algorithm={self.algorithm!r}, kid={self.kid!r})"


def key_files(auth: Auth) -> tuple[Path, ...]:
    """Return the key files of the settings."""
    return tuple(Path(name) for name in (auth.jwt_secret_file, *auth.jwt_public_keys) if name)


def read_keys(auth: Auth) -> tuple[Key, ...]:
    """Return all keys of the settings; raises `InvalidSetting` if a key cannot be used."""
    try:
        import cryptography  # noqa: F401
        import jwt  # noqa: F401
    except ImportError as error:
        raise InvalidSetting(f"setting auth.jwt_enabled: {_NEEDED}") from error
    keys: list[Key] = []
    if auth.jwt_secret:
        keys.append(_secret(auth.jwt_secret.encode(), "auth.jwt_secret"))
    if auth.jwt_secret_file:
        data = _read(Path(auth.jwt_secret_file), "auth.jwt_secret_file", secret=True)
        keys.append(_secret(data.strip(), f"auth.jwt_secret_file: {auth.jwt_secret_file}"))
    for name in auth.jwt_public_keys:
        data = _read(Path(name), "auth.jwt_public_keys", secret=False)
        where = f"auth.jwt_public_keys: {name}"
        keys += _from_jwks(data, where) if data.lstrip()[:1] == b"{" else [_from_pem(data, where)]
    return tuple(keys)


def choose(keys: Sequence[Key], algorithm: object, kid: object) -> Sequence[Key]:
    """Return the keys to try for a token: the key with its id, else keys without an id, for its algorithm only."""
    fitting = [key for key in keys if key.algorithm == algorithm]
    named = [key for key in fitting if key.kid is not None and key.kid == kid]
    # A token without a key id may come from an issuer with a single key.
    return named or [key for key in fitting if key.kid is None or kid is None]


def _read(path: Path, setting: str, *, secret: bool) -> bytes:
    try:
        return read_secret(path) if secret else path.read_bytes()
    except OSError as error:
        raise InvalidSetting(
            f"setting {setting}: cannot read {path}: {error.strerror}; check the path and its permissions"
        ) from error


def _secret(secret: bytes, where: str) -> Key:
    if len(secret) < MIN_SECRET_BYTES:
        raise InvalidSetting(
            f"setting {where} has {len(secret)} bytes, expected at least {MIN_SECRET_BYTES}; "
            "create a secret with: openssl rand -hex 32"
        )
    if secret.startswith(b"-----BEGIN"):
        raise InvalidSetting(
            f"setting {where} is a PEM file, expected a secret; put public keys into auth.jwt_public_keys"
        )
    return Key("HS256", secret)


def _from_pem(data: bytes, where: str) -> Key:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    if b"PRIVATE KEY" in data:
        raise InvalidSetting(f"setting {where} is a private key; use the public key instead")
    try:
        return _checked(load_pem_public_key(data), None, where)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidSetting(f"setting {where}: expected a public key in PEM format or a JWKS") from error


def _from_jwks(data: bytes, where: str) -> Iterator[Key]:
    """Yield the usable keys of a JWKS. It may also list keys for other algorithms or for encryption."""
    import jwt

    try:
        listed = msgspec.json.decode(data, type=dict[str, list[dict[str, Any]]])["keys"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
        raise InvalidSetting(f"setting {where} is not a JWKS: expected an object with a list of keys") from error
    found = False
    for entry in listed:
        kind, use, named = entry.get("kty"), entry.get("use", "sig"), entry.get("alg")
        if kind == "oct" or "d" in entry:
            raise InvalidSetting(f"setting {where} has a secret or private key; expected public keys only")
        algorithm = _ALGORITHMS.get((kind, entry.get("crv")))
        if algorithm is None or use != "sig" or named not in (None, algorithm):
            continue
        try:
            material = jwt.PyJWK(entry, algorithm).key
        except jwt.PyJWTError as error:
            raise InvalidSetting(f"setting {where}: cannot read the key with the kid {entry.get('kid')!r}") from error
        found = True
        yield _checked(material, _kid(entry.get("kid")), where)
    if not found:
        raise InvalidSetting(f"setting {where} has no key for RS256 (RSA) or EdDSA (Ed25519)")


def _checked(material: object, kid: str | None, where: str) -> Key:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if isinstance(material, Ed25519PublicKey):
        return Key("EdDSA", material, kid)
    if not isinstance(material, RSAPublicKey):
        raise InvalidSetting(f"setting {where} has a key of another type; expected RSA (RS256) or Ed25519 (EdDSA)")
    if material.key_size < _MIN_RSA_BITS:
        raise InvalidSetting(
            f"setting {where} has an RSA key of {material.key_size} bits, expected at least {_MIN_RSA_BITS}"
        )
    return Key("RS256", material, kid)


def _kid(kid: object) -> str | None:
    return kid if isinstance(kid, str) and kid else None


MAX_LENGTH = 8192
"""Maximum number of characters of a JWT, so that clients without a key cannot cause much work."""
_UNREADABLE = (ValueError, OverflowError, RecursionError)
"""Exceptions of Python for malicious texts, in addition to the errors of PyJWT."""
_NO_JWT = "the token is neither an API token nor a valid JWT; check that it was copied completely"


class Verified(msgspec.Struct, frozen=True):
    """A verified identity and its expiry."""

    identity: Identity
    until: int
    """Microseconds since the epoch; for a JWT including the leeway."""


def verify(text: str, keys: Sequence[Key], auth: Auth) -> Verified:
    """Return the identity of a JWT; raises `Unauthorized`, or `Forbidden` if it is valid but has no known role."""
    import jwt

    if len(text) > MAX_LENGTH:
        raise Unauthorized(_NO_JWT)
    try:
        header = jwt.get_unverified_header(text)
        candidates = choose(keys, header.get("alg"), header.get("kid"))
    except (jwt.PyJWTError, *_UNREADABLE) as error:
        raise Unauthorized(_NO_JWT) from error
    if not candidates:
        raise Unauthorized(
            "no key of this server matches the algorithm (`alg`) and the key id (`kid`) of the JWT; "
            "check the auth.jwt_* settings"
        )
    return _verified(_claims(text, candidates, auth), auth.jwt_leeway_seconds)


def _claims(text: str, candidates: Sequence[Key], auth: Auth) -> dict[str, Any]:
    """Return the claims of a JWT if one of the keys signed it and it is currently valid."""
    import jwt

    optional = {"iss": auth.jwt_issuer, "aud": auth.jwt_audience}
    required = ["exp", "sub", *(claim for claim, value in optional.items() if value)]
    for key in candidates:
        try:
            return jwt.decode(
                text,
                key.material,
                algorithms=[key.algorithm],
                issuer=auth.jwt_issuer or None,
                audience=auth.jwt_audience or None,
                leeway=auth.jwt_leeway_seconds,
                options={"require": required, "verify_aud": bool(auth.jwt_audience)},
            )
        except jwt.InvalidSignatureError:
            continue
        except jwt.ExpiredSignatureError as error:
            raise Unauthorized("the JWT has expired; request a new one from its issuer") from error
        except jwt.ImmatureSignatureError as error:
            raise Unauthorized("the JWT is not valid yet; check the clocks of the issuer and of this server") from error
        except jwt.MissingRequiredClaimError as error:
            raise Unauthorized(f"the JWT has no claim `{error.claim}`, which is required") from error
        except jwt.InvalidAudienceError as error:
            raise Unauthorized("the claim `aud` of the JWT does not match the setting auth.jwt_audience") from error
        except jwt.InvalidIssuerError as error:
            raise Unauthorized("the claim `iss` of the JWT does not match the setting auth.jwt_issuer") from error
        except (jwt.PyJWTError, *_UNREADABLE) as error:
            raise Unauthorized(_NO_JWT) from error
    raise Unauthorized("the signature of the JWT does not match any key of this server; check the auth.jwt_* settings")


def _verified(claims: dict[str, Any], leeway: int) -> Verified:
    try:
        subject = check_subject(claims["sub"], "sub")
        queues = check_queues(claims.get("queues", ALL_QUEUES))
    except InvalidInput as error:
        raise Unauthorized(f"a claim of the JWT is invalid: {error.text}") from error
    listed = claims.get("roles")
    named = [claims.get("role"), *(listed if isinstance(listed, list) else ())]
    known = [role for text in named if isinstance(text, str) and (role := Role.of(text)) is not None]
    if not known:
        raise Forbidden("the JWT has no valid role; expected read-only, read-write or admin in its claim `role`")
    return Verified(Identity(subject, max(known), queues), (int(claims["exp"]) + leeway) * SECOND)
