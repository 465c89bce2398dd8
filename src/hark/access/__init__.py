"""Who may do what: roles, API tokens, JWT. It knows no HTTP; `http/edge` asks it for every request."""
