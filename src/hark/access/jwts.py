"""JWT: who a signed token says that its bearer is, if a key verifies it; PyJWT checks the signature and the times."""

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
"""Characters in a JWT at most: whoever has no key should not make us read much."""
_UNREADABLE = (ValueError, OverflowError, RecursionError)
"""What Python's JSON and numbers say of texts that are meant to hurt, beside PyJWT's own errors."""
_NO_JWT = "the token is neither an API token nor a JWT that this server accepts"


class Verified(msgspec.Struct, frozen=True):
    """Who a JWT stands for, and until when."""

    identity: Identity
    until: int
    """In microseconds since the epoch, with the leeway."""


def verify(text: str, keys: Sequence[Key], auth: Auth) -> Verified:
    """Who comes with this JWT; raises `Unauthorized`, or `Forbidden` if it is good but names no role of ours."""
    import jwt

    if len(text) > MAX_LENGTH:
        raise Unauthorized(_NO_JWT)
    try:
        header = jwt.get_unverified_header(text)
        candidates = choose(keys, header.get("alg"), header.get("kid"))
    except (jwt.PyJWTError, *_UNREADABLE) as error:
        raise Unauthorized(_NO_JWT) from error
    if not candidates:
        raise Unauthorized("no key of this server fits the algorithm and the `kid` of the JWT")
    return _verified(_claims(text, candidates, auth), auth.jwt_leeway_seconds)


def _claims(text: str, candidates: Sequence[Key], auth: Auth) -> dict[str, Any]:
    """What a JWT says, if one of the keys signed it and its time is now."""
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
            raise Unauthorized("the JWT has expired; get another") from error
        except jwt.ImmatureSignatureError as error:
            raise Unauthorized("the JWT is not valid yet; is a clock wrong?") from error
        except jwt.MissingRequiredClaimError as error:
            raise Unauthorized(f"the JWT has no claim `{error.claim}`, which it must have") from error
        except jwt.InvalidAudienceError as error:
            raise Unauthorized("the JWT is for others: its claim `aud` is not auth.jwt_audience") from error
        except jwt.InvalidIssuerError as error:
            raise Unauthorized("the JWT is from others: its claim `iss` is not auth.jwt_issuer") from error
        except (jwt.PyJWTError, *_UNREADABLE) as error:
            raise Unauthorized(_NO_JWT) from error
    raise Unauthorized("the signature of the JWT is not that of a key of this server")


def _required(auth: Auth) -> list[str]:
    wanted = {"iss": auth.jwt_issuer, "aud": auth.jwt_audience}
    return ["exp", "sub", *(claim for claim, value in wanted.items() if value)]


def _verified(claims: dict[str, Any], leeway: int) -> Verified:
    try:
        subject = check_subject(claims["sub"], "sub")
        queues = check_queues(claims.get("queues", ALL_QUEUES))
    except InvalidInput as error:
        raise Unauthorized(f"a claim of the JWT can't be used: {error.text}") from error
    role = _role_of(claims)
    if role is None:
        raise Forbidden("the JWT names no role that Hark knows: read-only, read-write or admin in its claim `role`")
    return Verified(Identity(subject, role, queues), (int(claims["exp"]) + leeway) * SECOND)


def _role_of(claims: dict[str, Any]) -> Role | None:
    """The highest of the roles that a JWT names and that Hark knows."""
    listed = claims.get("roles")
    named = [claims.get("role"), *(listed if isinstance(listed, list) else ())]
    known = [role for text in named if isinstance(text, str) and (role := Role.of(text)) is not None]
    return max(known, default=None)
