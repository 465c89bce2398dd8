"""Verification of JWTs. PyJWT checks the signature and the times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from hark.access.identity import ALL_QUEUES, Identity, Role
from hark.access.jwt_keys import Key, choose
from hark.access.tokens import check_queues, check_subject
from hark.clock import SECOND
from hark.errors import Forbidden, InvalidInput, Unauthorized
from hark.settings.security import Auth

MAX_LENGTH = 8192
"""Maximum number of characters of a JWT, so that clients without a key cannot cause much work."""
_UNREADABLE = (ValueError, OverflowError, RecursionError)
"""Exceptions of Python for malicious texts, in addition to the errors of PyJWT."""
_NO_JWT = "the token is neither an API token nor a valid JWT; check that it was copied completely"


class Verified(msgspec.Struct, frozen=True):
    """The identity of a JWT and its expiry."""

    identity: Identity
    until: int
    """Microseconds since the epoch, including the leeway."""


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
            "no key of this server matches the algorithm (`alg`) and the key id (`kid`) of the JWT; check the "
            "auth.jwt_* "
            "settings"
        )
    return _verified(_claims(text, candidates, auth), auth.jwt_leeway_seconds)


def _claims(text: str, candidates: Sequence[Key], auth: Auth) -> dict[str, Any]:
    """Return the claims of a JWT if one of the keys signed it and it is currently valid."""
    import jwt

    for key in candidates:
        try:
            return jwt.decode(
                text,
                key.material,
                algorithms=[key.algorithm],
                issuer=auth.jwt_issuer or None,
                audience=auth.jwt_audience or None,
                leeway=auth.jwt_leeway_seconds,
                options={"require": _required(auth), "verify_aud": bool(auth.jwt_audience)},
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


def _required(auth: Auth) -> list[str]:
    wanted = {"iss": auth.jwt_issuer, "aud": auth.jwt_audience}
    return ["exp", "sub", *(claim for claim, value in wanted.items() if value)]


def _verified(claims: dict[str, Any], leeway: int) -> Verified:
    try:
        subject = check_subject(claims["sub"], "sub")
        queues = check_queues(claims.get("queues", ALL_QUEUES))
    except InvalidInput as error:
        raise Unauthorized(f"a claim of the JWT is invalid: {error.text}") from error
    role = _role_of(claims)
    if role is None:
        raise Forbidden("the JWT has no valid role; expected read-only, read-write or admin in its claim `role`")
    return Verified(Identity(subject, role, queues), (int(claims["exp"]) + leeway) * SECOND)


def _role_of(claims: dict[str, Any]) -> Role | None:
    """Return the highest known role of a JWT, or None."""
    listed = claims.get("roles")
    named = [claims.get("role"), *(listed if isinstance(listed, list) else ())]
    known = [role for text in named if isinstance(text, str) and (role := Role.of(text)) is not None]
    return max(known, default=None)
