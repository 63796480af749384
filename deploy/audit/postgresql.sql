-- The store of an audit trail in PostgreSQL 13 or newer: one table in monthly partitions, and two roles.
--
--   psql --single-transaction --set ON_ERROR_STOP=1 --file postgresql.sql "postgresql://owner@host/audit"
--
-- Run this file as the role that will own the table. This role must be allowed to create roles, and tables in this
-- database. You can run the file again at any time: it creates what is missing, and resets the privileges of PUBLIC and of
-- the two roles. Everything is created in the first schema of the search_path.
--
-- A login role gets its privileges by membership. It must not be a member of the owner:
--
--   CREATE ROLE my_agents LOGIN PASSWORD '...' IN ROLE traced_tools_audit_writer;
--   CREATE ROLE my_auditor LOGIN PASSWORD '...' IN ROLE traced_tools_audit_reader;
--
-- Before version 15, PostgreSQL lets every role create objects in the schema public. A writer could add a function there
-- that the owner calls by mistake, because PostgreSQL prefers the function whose argument types match best. This file
-- therefore revokes that right, and fails if it can't. It calls every function with the schema pg_catalog, and the
-- functions that it creates see no other schema.

DO $$
BEGIN
    IF pg_catalog.to_regrole('traced_tools_audit_writer') IS NULL THEN
        CREATE ROLE traced_tools_audit_writer NOLOGIN;
    END IF;
    IF pg_catalog.to_regrole('traced_tools_audit_reader') IS NULL THEN
        CREATE ROLE traced_tools_audit_reader NOLOGIN;
    END IF;
END
$$;

DO $$
DECLARE
    trail CONSTANT name := pg_catalog.current_schema();
    grantee name;
BEGIN
    EXECUTE pg_catalog.format(
        'REVOKE CREATE ON SCHEMA %I FROM PUBLIC, traced_tools_audit_writer, traced_tools_audit_reader', trail
    );
    FOREACH grantee IN ARRAY ARRAY['public', 'traced_tools_audit_writer', 'traced_tools_audit_reader'] LOOP
        IF pg_catalog.has_schema_privilege(grantee, trail, 'CREATE') THEN
            RAISE EXCEPTION 'the role % may create objects in the schema % of the trail', grantee, trail
                USING HINT = 'Have the owner of the schema run REVOKE CREATE ON SCHEMA ... FROM PUBLIC in this database;'
                    ' or create a schema for the trail alone, and put it first in the search_path.';
        END IF;
    END LOOP;
END
$$;

-- Fails if another role has created an object with a name that the trail uses. "IF NOT EXISTS" would treat the object as
-- part of the trail, and a trigger of such a table would run with the owner's privileges.
DO $$
DECLARE
    of_the_trail CONSTANT text := '^(audit_records(_.*)?|audit_(make|detach)_partitions'
        '|audit_(calls|intents|decisions|outcomes|conversations|checkpoints))$';
    found name;
BEGIN
    SELECT object INTO found
    FROM (
        SELECT relname, relowner, relnamespace FROM pg_catalog.pg_class
        UNION ALL SELECT typname, typowner, typnamespace FROM pg_catalog.pg_type
        UNION ALL SELECT proname, proowner, pronamespace FROM pg_catalog.pg_proc
    ) AS objects(object, owner, namespace) JOIN pg_catalog.pg_namespace ON pg_namespace.oid = namespace
    WHERE nspname = pg_catalog.current_schema() AND object ~ of_the_trail
        AND pg_catalog.pg_get_userbyid(owner) <> CURRENT_USER
    LIMIT 1;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION '% belongs to another role than %', found, CURRENT_USER
            USING HINT = 'Run this file as the owner of the trail. Drop what another role made.';
    END IF;
END
$$;

-- The columns are those of traced_tools.audit.schema. PostgreSQL requires the partition key in every unique index, so the
-- primary key is wider than (chain_id, sequence), which identifies a record. The writer prevents duplicates: each writer
-- has its own chain, numbered by one thread. If the result of a commit is unknown, the writer sends the same batch again
-- with the same times, so the key refuses it if the first commit succeeded. `traced-tools audit verify` reports any
-- duplicate.
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

-- Takes the records of months without a partition, so that no record is refused.
CREATE TABLE IF NOT EXISTS audit_records_default PARTITION OF audit_records DEFAULT;

-- Fails if "IF NOT EXISTS" found an object that isn't part of the trail, or if a partition belongs to another role.
DO $$
DECLARE
    trail CONSTANT oid := 'audit_records'::pg_catalog.regclass;
    found name;
BEGIN
    SELECT relname INTO found FROM pg_catalog.pg_class
    WHERE (oid = trail OR oid IN (SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = trail))
        AND pg_catalog.pg_get_userbyid(relowner) <> CURRENT_USER
    LIMIT 1;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION '% belongs to another role than %', found, CURRENT_USER
            USING HINT = 'Run this file as the owner of the trail. Drop what another role made.';
    END IF;
    SELECT part INTO found
    FROM pg_catalog.unnest(
        ARRAY['audit_records_default', 'audit_calls', 'audit_intents', 'audit_decisions', 'audit_outcomes',
            'audit_conversations', 'audit_checkpoints']::name[]
    ) AS part
    WHERE part NOT IN (
        SELECT relname FROM pg_catalog.pg_inherits JOIN pg_catalog.pg_class ON pg_class.oid = inhrelid
            WHERE inhparent = trail
        UNION ALL
        SELECT relname FROM pg_catalog.pg_index JOIN pg_catalog.pg_class ON pg_class.oid = indexrelid
            WHERE indrelid = trail
    )
    LIMIT 1;
    IF found IS NOT NULL THEN
        RAISE EXCEPTION '% is not a part of the table audit_records', found
            USING HINT = 'Something else has this name. Rename it, and run this file again.';
    END IF;
END
$$;

-- Creates the partitions of the current month (UTC) and of the next `months_ahead` months. For earlier months since 2000
-- that have records in the default partition, creates partitions and moves the records: at most 36 such months in a run,
-- latest first. Returns the number of new partitions, and warns of records that stay in the default partition. Run it
-- every month, as the owner, with cron or pg_cron. While it moves records, readers wait, and writers wait only if they
-- write to the default partition.
DO $install$
BEGIN
EXECUTE pg_catalog.replace($source$
CREATE OR REPLACE FUNCTION audit_make_partitions(months_ahead integer DEFAULT 12) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $function$
DECLARE
    trail CONSTANT text := {trail};
    earliest CONSTANT timestamp := '2000-01-01';
    most_moved CONSTANT integer := 36;
    this_month CONSTANT timestamp := date_trunc('month', now() AT TIME ZONE 'UTC');
    month timestamp;
    partition text;
    since bigint;
    until bigint;
    made integer := 0;
    moved integer := 0;
    staying record;
BEGIN
    EXECUTE format('LOCK TABLE ONLY %I.audit_records IN SHARE UPDATE EXCLUSIVE MODE', trail);  -- one at a time
    IF NOT EXISTS (  -- a trigger of another role's table would run with the privileges of the role that moves its records
        SELECT FROM pg_inherits
            JOIN pg_class AS part ON part.oid = inhrelid JOIN pg_class AS whole ON whole.oid = inhparent
        WHERE inhparent = format('%I.audit_records', trail)::regclass
            AND inhrelid = to_regclass(format('%I.audit_records_default', trail)) AND part.relowner = whole.relowner
    ) THEN
        RAISE EXCEPTION 'audit_records_default is not a partition of the trail that the owner of audit_records has'
            USING HINT = 'Drop or rename that table, and run postgresql.sql again as the owner of the trail.';
    END IF;
    FOR month IN EXECUTE format(
        $query$
            SELECT %L::timestamp + make_interval(months => ahead) FROM generate_series(0, %s) AS ahead
            UNION
            SELECT date_trunc('month', to_timestamp(time / 1000000000) AT TIME ZONE 'UTC')
            FROM %I.audit_records_default WHERE time >= %s AND time < %s
            ORDER BY 1 DESC
        $query$,
        this_month, months_ahead, trail,
        extract(epoch FROM earliest)::bigint * 1000000000, extract(epoch FROM this_month)::bigint * 1000000000
    ) LOOP
        partition := to_char(month, '"audit_records_"YYYY_MM');
        IF to_regclass(format('%I.%I', trail, partition)) IS NOT NULL THEN
            IF month >= this_month AND NOT EXISTS (
                SELECT FROM pg_inherits WHERE inhparent = format('%I.audit_records', trail)::regclass
                    AND inhrelid = format('%I.%I', trail, partition)::regclass
            ) THEN
                RAISE WARNING '% is not a partition of the trail, so that its month has none', partition;
            END IF;
            CONTINUE;
        END IF;
        IF month < this_month THEN
            CONTINUE WHEN moved >= most_moved;
            moved := moved + 1;
        END IF;
        since := extract(epoch FROM month)::bigint * 1000000000;
        until := extract(epoch FROM month + interval '1 month')::bigint * 1000000000;
        EXECUTE format('CREATE TABLE %1$I.%2$I (LIKE %1$I.audit_records INCLUDING ALL)', trail, partition);
        EXECUTE format('REVOKE ALL ON %I.%I FROM PUBLIC', trail, partition);
        EXECUTE format('LOCK TABLE %I.audit_records_default IN ACCESS EXCLUSIVE MODE', trail);
        EXECUTE format(
            'WITH moved AS (DELETE FROM %1$I.audit_records_default WHERE time >= %3$s AND time < %4$s RETURNING *)'
            ' INSERT INTO %1$I.%2$I SELECT * FROM moved', trail, partition, since, until
        );
        EXECUTE format(
            'ALTER TABLE %1$I.audit_records ATTACH PARTITION %1$I.%2$I FOR VALUES FROM (%3$s) TO (%4$s)',
            trail, partition, since, until
        );
        made := made + 1;
    END LOOP;
    EXECUTE format(
        $query$
            SELECT count(*) AS months, sum(records) AS records,
                string_agg(to_char(month, 'YYYY-MM'), ', ' ORDER BY month) FILTER (WHERE place <= 5) AS first
            FROM (
                SELECT month, count(*) AS records, row_number() OVER (ORDER BY month) AS place
                FROM (
                    SELECT date_trunc('month', to_timestamp(time / 1000000000) AT TIME ZONE 'UTC') AS month
                    FROM %I.audit_records_default
                ) AS times
                GROUP BY month
            ) AS months
        $query$, trail
    ) INTO staying;
    IF staying.months > 0 THEN
        RAISE WARNING '% records of % months stay in audit_records_default; the first months are %',
            staying.records, staying.months, staying.first
            USING HINT = format(
                'No partition is made for a month before %s or after the months asked for, nor where a table has its'
                ' name already, nor for more than %s earlier months in a run.', to_char(earliest, 'YYYY-MM'), most_moved
            );
    END IF;
    RETURN made;
END
$function$
$source$, '{trail}', pg_catalog.quote_literal(pg_catalog.current_schema()));
END
$install$;

-- Detaches the partitions of all months that had ended by `ended_by`, and returns their names. They become tables that
-- only the owner may read: archive them (pg_dump --table), then run DROP TABLE. Only the owner may run this function. It
-- doesn't wait for long queries, because writers would have to wait as well: it fails. Run it again in that case.
DO $install$
BEGIN
EXECUTE pg_catalog.replace($source$
CREATE OR REPLACE FUNCTION audit_detach_partitions(ended_by timestamptz) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $function$
DECLARE
    trail CONSTANT text := {trail};
    partition text;
BEGIN
    FOR partition IN
        SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = format('%I.audit_records', trail)::regclass AND relname ~ '^audit_records_\d{4}_\d{2}$'
            AND to_date(right(relname, 7), 'YYYY_MM') + interval '1 month' <= ended_by AT TIME ZONE 'UTC'
        ORDER BY relname
    LOOP
        EXECUTE format('ALTER TABLE %1$I.audit_records DETACH PARTITION %1$I.%2$I', trail, partition);
        RETURN NEXT partition;
    END LOOP;
END
$function$
$source$, '{trail}', pg_catalog.quote_literal(pg_catalog.current_schema()));
END
$install$;

DO $$
BEGIN
    EXECUTE pg_catalog.format('SELECT %I.audit_make_partitions(12)', pg_catalog.current_schema());
END
$$;

-- The writer adds records, and reads only where chains ended. The reader reads records. Neither may change or remove a
-- record. Both access partitions only through the table.
REVOKE ALL ON FUNCTION audit_make_partitions(integer), audit_detach_partitions(timestamptz)
    FROM PUBLIC, traced_tools_audit_writer, traced_tools_audit_reader;
DO $$
DECLARE
    tables text;
BEGIN
    SELECT pg_catalog.string_agg(pg_catalog.format('%I.%I', nspname, relname), ', ') INTO tables
    FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relkind IN ('p', 'r') AND (
        (nspname = pg_catalog.current_schema() AND relname ~ '^audit_records(_default|_\d{4}_\d{2})?$'::text)
        OR pg_class.oid IN (
            SELECT inhrelid FROM pg_catalog.pg_inherits WHERE inhparent = 'audit_records'::pg_catalog.regclass::oid
        )
    );
    EXECUTE 'REVOKE ALL ON ' || tables || ' FROM PUBLIC, traced_tools_audit_writer, traced_tools_audit_reader';
END
$$;
GRANT INSERT, SELECT (chain_id, sequence, time, hash) ON audit_records TO traced_tools_audit_writer;
GRANT SELECT ON audit_records TO traced_tools_audit_reader;
DO $$
BEGIN
    EXECUTE pg_catalog.format(
        'GRANT USAGE ON SCHEMA %I TO traced_tools_audit_writer, traced_tools_audit_reader', pg_catalog.current_schema()
    );
END
$$;
