-- Remaining tokens of the rate limit of a group in a partition, and when they were last filled; null: all.
alter table positions add column tokens real;
alter table positions add column filled_at integer not null default 0;
