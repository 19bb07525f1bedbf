-- Version 1.  Created by `relay database init`, in one transaction.
CREATE SCHEMA relay;

CREATE TABLE relay.schema_version (version integer NOT NULL);
INSERT INTO relay.schema_version VALUES (1);

-- An account at an upstream.  Its row is the lock for writers, and holds its clock and its pause.
CREATE TABLE relay.account (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text NOT NULL UNIQUE,
    -- A history that is begun anew under the same name has another identity.
    identity    uuid NOT NULL DEFAULT gen_random_uuid(),
    -- Positions in relay.history; both 0 before the first commit.
    first_position bigint NOT NULL DEFAULT 0,
    last_position  bigint NOT NULL DEFAULT 0,
    -- The history's time is the server's clock plus offset_ns; it is never before now_ns.
    offset_ns   bigint NOT NULL DEFAULT 0,
    now_ns      bigint NOT NULL DEFAULT 0,
    -- The pause; empty in version 0.
    state       text NOT NULL DEFAULT '',
    state_version bigint NOT NULL DEFAULT 0
);

-- Each row is a group, which is one commit: a JSON array of events (relay/throttle/history.py).
CREATE TABLE relay.history (
    account_id  bigint NOT NULL REFERENCES relay.account,
    position    bigint NOT NULL,
    events      text NOT NULL,
    PRIMARY KEY (account_id, position)
);

-- The time of each host's last commit to each history.
CREATE TABLE relay.mark (
    account_id  bigint NOT NULL REFERENCES relay.account ON DELETE CASCADE,
    host        text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (account_id, host)
);

-- A host that owns messages.  Its lease ends at `until`; `fence` is the number of its latest process.
CREATE TABLE relay.owner (
    identity    uuid PRIMARY KEY,
    host        text NOT NULL,
    fence       bigint NOT NULL,
    until       timestamptz NOT NULL
);

CREATE TABLE relay.message (
    queue_id    text COLLATE "C" PRIMARY KEY,
    -- Both as in a message file (relay/spool/message/message_file.py), with every recipient to do.
    header      bytea NOT NULL,
    envelope    bytea NOT NULL,
    -- One letter for each recipient, in lower case once a report told of that recipient.
    statuses    text NOT NULL,
    notes       bytea NOT NULL DEFAULT '',
    is_held     boolean NOT NULL DEFAULT false,
    is_warned   boolean NOT NULL DEFAULT false,
    next_attempt_at_ns bigint,
    owner       uuid,
    fence       bigint,
    -- Why the message was set aside; null for a queued message.
    corrupt     text,
    -- The wish of an operator on another host: a verb, and the states in which it applies.
    wish        text
);
CREATE INDEX message_wish ON relay.message (owner) WHERE wish IS NOT NULL;
CREATE INDEX message_new ON relay.message (queue_id) WHERE owner IS NULL AND corrupt IS NULL;
CREATE INDEX message_owned ON relay.message (owner, fence) WHERE corrupt IS NULL;

-- The content of a message, in chunks of 256 KiB.
CREATE TABLE relay.chunk (
    queue_id    text COLLATE "C" NOT NULL REFERENCES relay.message ON DELETE CASCADE,
    number      integer NOT NULL,
    content     bytea NOT NULL,
    PRIMARY KEY (queue_id, number)
);

-- The result of a wish.  The message itself may have ended.
CREATE TABLE relay.answer (
    queue_id    text COLLATE "C" PRIMARY KEY,
    answer      text NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp()
);

ALTER TABLE relay.chunk ALTER content SET STORAGE EXTERNAL;
