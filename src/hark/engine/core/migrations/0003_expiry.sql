-- Messages with their own time to live, for retention.
create index messages_expiry on messages (extra ->> 'x') where extra ->> 'x' is not null;
