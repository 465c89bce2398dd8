-- PostgreSQL lets everyone who may use a schema call its functions. A role that may send may call one (inbox.sql).
revoke execute on all functions in schema hark from public;
