-- SPDX-License-Identifier: MIT
--
-- Moves a table of one's own,
--
--   processed_events (tenant_id uuid, consumer text, event_id uuid, PRIMARY KEY (tenant_id, consumer, event_id)),
--
-- over to the library's keys while instances of the old code go on working: no event is handled twice, none is lost.
-- The old code inserts its row in the transaction of its effect, and takes a conflict for "handled before".
--
-- Before: make the library's schema (create_schema(), or the SQL of schema_sql()).
-- In psql, as the owner of both:  psql -X -v ON_ERROR_STOP=1 -f migrate.sql   (steps 1 and 2; step 3 much later)
--
-- An id is the same for both codes when the new one spells tenant and event id as PostgreSQL prints a uuid: lower
-- case, with hyphens. Consumers in lease mode start after the old code has ended.

-- Step 1: from here on, each code sees in its own table, and within the transaction, what the other one does.
-- Both take the key in `keys` first: they wait for each other, and never in a ring.
BEGIN;
SET LOCAL lock_timeout = '5s';  -- it waits for the old code's open transactions, and holds up new ones meanwhile

-- The old code's row takes the key too. Marked by a claim token of zeros: moved over, not claimed.
CREATE FUNCTION idem.take_over_event() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO idem.keys (tenant, consumer, event_id, claim_token)
  VALUES (NEW.tenant_id::text, NEW.consumer, NEW.event_id::text, '00000000-0000-0000-0000-000000000000')
  ON CONFLICT (tenant, consumer, event_id) DO NOTHING;
  RETURN NEW;  -- and its own insert finds out whether the event was handled before
END $$;

-- The new code's key makes a row for the old one to see. There is one already: the event was handled before and not
-- moved over yet, so that the new code's transaction must not go on.
CREATE FUNCTION idem.hand_back_event() RETURNS trigger
  LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO public.processed_events (tenant_id, consumer, event_id)
  VALUES (NEW.tenant::uuid, NEW.consumer, NEW.event_id::uuid)
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'the event was handled before it was moved over: wait for the end of step 2'
      USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  RETURN NULL;
END $$;

CREATE TRIGGER take_over_event BEFORE INSERT ON public.processed_events
  FOR EACH ROW EXECUTE FUNCTION idem.take_over_event();
-- Keys that are no pair of uuids are of consumers that the old code never had.
CREATE TRIGGER hand_back_event AFTER INSERT ON idem.keys
  FOR EACH ROW WHEN (NEW.claim_token <> '00000000-0000-0000-0000-000000000000'
    AND NEW.tenant ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    AND NEW.event_id ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$')
  EXECUTE FUNCTION idem.hand_back_event();
COMMIT;

-- Step 2: what the old code did before step 1, in batches; may be interrupted and run again. New code may start when
-- it has ended (what starts earlier is deferred, not handled twice), and old code may go on as long as it is needed.
CREATE OR REPLACE PROCEDURE idem.move_events(batch integer) LANGUAGE plpgsql AS $$
DECLARE
  last record;
BEGIN
  SELECT '00000000-0000-0000-0000-000000000000'::uuid AS tenant_id, '' AS consumer,
         '00000000-0000-0000-0000-000000000000'::uuid AS event_id INTO last;
  LOOP
    WITH page AS (
      SELECT tenant_id, consumer, event_id FROM public.processed_events
      WHERE (tenant_id, consumer, event_id) > (last.tenant_id, last.consumer, last.event_id)
      ORDER BY tenant_id, consumer, event_id LIMIT batch
    ), moved AS (
      INSERT INTO idem.keys (tenant, consumer, event_id, claim_token)
      SELECT tenant_id::text, consumer, event_id::text, '00000000-0000-0000-0000-000000000000' FROM page
      -- In the order in which every claim of several takes its keys.
      ORDER BY tenant_id::text COLLATE "C", consumer COLLATE "C", event_id::text COLLATE "C"
      ON CONFLICT (tenant, consumer, event_id) DO NOTHING
    )
    SELECT * INTO last FROM page ORDER BY tenant_id DESC, consumer DESC, event_id DESC LIMIT 1;
    EXIT WHEN NOT FOUND;
    COMMIT;
  END LOOP;
END $$;
CALL idem.move_events(5000);

-- Step 3: when no instance of the old code is left. The old table may go whenever nobody needs it.
-- SET lock_timeout = '5s';  -- run again what it ends
-- DROP TRIGGER IF EXISTS hand_back_event ON idem.keys;  -- first: new code takes `keys` before the other table
-- DROP TRIGGER IF EXISTS take_over_event ON public.processed_events;
-- DROP FUNCTION IF EXISTS idem.take_over_event(), idem.hand_back_event();
-- DROP PROCEDURE IF EXISTS idem.move_events(integer);
