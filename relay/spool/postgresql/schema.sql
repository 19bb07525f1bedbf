-- Version 1.  Made by `relay database init`, in one transaction.
CREATE SCHEMA relay;

CREATE TABLE relay.schema_version (version integer NOT NULL);
INSERT INTO relay.schema_version VALUES (1);

-- One account at an upstream: its lock, its clock, and its pause.
CREATE TABLE relay.account (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL UNIQUE,
    -- Tells a history from one that was begun anew under the same name.
    identity    uuid NOT NULL DEFAULT gen_random_uuid(),
    -- The last group, and the first one that counts.
    position    bigint NOT NULL DEFAULT 0,
    replaced    bigint NOT NULL DEFAULT 0,
    -- The history's time is the server's clock and this, and never earlier than it was.
    offset_ns   bigint NOT NULL DEFAULT 0,
    now_ns      bigint NOT NULL DEFAULT 0,
    state       text,
    state_version bigint NOT NULL DEFAULT 0
);

-- A group is one commit: a JSON array of events (relay/throttle/history_format.py).
CREATE TABLE relay.history (
    account_id  bigint NOT NULL REFERENCES relay.account,
    position    bigint NOT NULL,
    events      text NOT NULL,
    PRIMARY KEY (account_id, position)
);
