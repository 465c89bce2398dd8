"""Code that runs before every route: authentication, origin checks, permissions and the audit log."""
