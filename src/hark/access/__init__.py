"""Authentication and permissions: roles, API tokens, JWTs. Independent of HTTP; `http/admission.py` uses it."""
