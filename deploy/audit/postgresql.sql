-- The store of an audit trail in PostgreSQL 13 or newer: one table in monthly partitions, and two roles.
--
--   psql --single-transaction --set ON_ERROR_STOP=1 --file postgresql.sql "postgresql://owner@host/audit"
--
-- Run it as the role that is to own the table, which must be allowed to create tables here and roles. It may be run
-- again at any time: it makes what is missing, and puts privileges back to what they should be. Everything is made in
-- the first schema of the search_path.
--
-- A login role gets its rights by membership, and must not be a member of the owner:
--
--   CREATE ROLE my_agents LOGIN PASSWORD '...' IN ROLE traced_tools_audit_writer;
--   CREATE ROLE my_auditor LOGIN PASSWORD '...' IN ROLE traced_tools_audit_reader;

DO $$
BEGIN
    IF to_regrole('traced_tools_audit_writer') IS NULL THEN
        CREATE ROLE traced_tools_audit_writer NOLOGIN;
    END IF;
    IF to_regrole('traced_tools_audit_reader') IS NULL THEN
        CREATE ROLE traced_tools_audit_reader NOLOGIN;
    END IF;
END
$$;

-- Columns are those of traced_tools.audit.schema. PostgreSQL wants the partition key in every unique index, so that the
-- primary key is wider than (chain_id, sequence), which is what makes a record unique. What excludes doubles is the
-- writer: each has a chain of its own, numbered by one thread. A batch whose commit was in doubt is sent again as it
-- was, times included, so that the key refuses it if it did arrive. Should there be a double all the same,
-- `traced-tools audit verify` names it.
CREATE TABLE IF NOT EXISTS audit_records (
    chain_id text NOT NULL,
    sequence bigint NOT NULL,
    time bigint NOT NULL,  -- nanoseconds of Unix time
    kind text NOT NULL,
    run_id text,
    iteration integer,
    batch_index integer,
    call_id text,
    tool text,
    agent text,
    conversation_id text,
    decision text,
    outcome text,
    hash text NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (chain_id, sequence, time)
) PARTITION BY RANGE (time);

CREATE INDEX IF NOT EXISTS audit_calls ON audit_records (run_id, iteration, batch_index, kind, decision)
    WHERE run_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_intents ON audit_records (time, tool, agent, conversation_id) WHERE kind = 'intent';
CREATE INDEX IF NOT EXISTS audit_decisions ON audit_records (decision, time, tool, agent, conversation_id)
    WHERE kind = 'decision';
CREATE INDEX IF NOT EXISTS audit_outcomes ON audit_records (outcome, time, tool, agent, conversation_id)
    WHERE kind = 'outcome';
CREATE INDEX IF NOT EXISTS audit_conversations ON audit_records (conversation_id, time)
    WHERE kind = 'intent' AND conversation_id IS NOT NULL;
CREATE INDEX IF NOT EXISTS audit_checkpoints ON audit_records (chain_id, sequence) WHERE kind = 'checkpoint';

-- Takes what no month's partition takes, so that no record is ever refused for lack of one.
CREATE TABLE IF NOT EXISTS audit_records_default PARTITION OF audit_records DEFAULT;

-- Makes the partitions of this month (UTC) and of so many after it, and of any month that has records in the default
-- partition, which it moves. Returns how many it made. Run it monthly, as the owner: cron, pg_cron. While it moves
-- records, readers wait; writers wait only where they write into the default partition.
CREATE OR REPLACE FUNCTION audit_make_partitions(months_ahead integer DEFAULT 12) RETURNS integer
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '2s' AS $$
DECLARE
    this_month timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    month timestamp;
    partition text;
    since bigint;
    until bigint;
    made integer := 0;
BEGIN
    LOCK TABLE ONLY audit_records IN SHARE UPDATE EXCLUSIVE MODE;  -- one at a time
    FOR month IN
        SELECT this_month + make_interval(months => ahead) FROM generate_series(0, months_ahead) AS ahead
        UNION
        SELECT date_trunc('month', to_timestamp(time / 1000000000) AT TIME ZONE 'UTC') FROM audit_records_default
        ORDER BY 1
    LOOP
        partition := to_char(month, '"audit_records_"YYYY_MM');
        CONTINUE WHEN to_regclass(partition) IS NOT NULL;
        since := extract(epoch FROM month)::bigint * 1000000000;
        until := extract(epoch FROM month + interval '1 month')::bigint * 1000000000;
        EXECUTE format('CREATE TABLE %I (LIKE audit_records INCLUDING ALL)', partition);
        EXECUTE format('REVOKE ALL ON %I FROM PUBLIC', partition);
        LOCK TABLE audit_records_default IN ACCESS EXCLUSIVE MODE;
        EXECUTE format(
            'WITH moved AS (DELETE FROM audit_records_default WHERE time >= %s AND time < %s RETURNING *)'
            ' INSERT INTO %I SELECT * FROM moved', since, until, partition
        );
        EXECUTE format(
            'ALTER TABLE audit_records ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)', partition, since, until
        );
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

-- Takes the partitions of all months that ended by then out of the trail, and returns their names. They become tables
-- of the owner's that nobody else may read: archive them (pg_dump --table), then DROP TABLE. Only the owner may run it.
-- It does not wait for long queries to end, since writers would wait as well, but fails; run it again then.
CREATE OR REPLACE FUNCTION audit_detach_partitions(ended_by timestamptz) RETURNS SETOF text
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '2s' AS $$
DECLARE
    partition text;
BEGIN
    FOR partition IN
        SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = 'audit_records'::regclass AND relname ~ '^audit_records_\d{4}_\d{2}$'
            AND to_date(right(relname, 7), 'YYYY_MM') + interval '1 month' <= ended_by AT TIME ZONE 'UTC'
        ORDER BY relname
    LOOP
        EXECUTE format('ALTER TABLE audit_records DETACH PARTITION %I', partition);
        RETURN NEXT partition;
    END LOOP;
END
$$;

SELECT audit_make_partitions();

-- The writer adds records, and reads no more than where chains ended. The reader reads. Neither changes or removes a
-- record, and partitions are reached through the table alone.
REVOKE ALL ON FUNCTION audit_make_partitions(integer), audit_detach_partitions(timestamptz) FROM PUBLIC;
REVOKE ALL ON audit_records, audit_records_default FROM PUBLIC, traced_tools_audit_writer, traced_tools_audit_reader;
GRANT INSERT, SELECT (chain_id, sequence, time, hash) ON audit_records TO traced_tools_audit_writer;
GRANT SELECT ON audit_records TO traced_tools_audit_reader;
DO $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO traced_tools_audit_writer, traced_tools_audit_reader', current_schema());
END
$$;
