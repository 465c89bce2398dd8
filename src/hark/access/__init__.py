"""Authentication and permissions: roles, API tokens, JWTs. Independent of HTTP; `http/edge` uses it."""
