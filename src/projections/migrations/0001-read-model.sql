-- The read model: the fold of every task's stream, written only by the active projector (or a repair).

CREATE TABLE rollcall.tasks (
  task_id       uuid PRIMARY KEY,
  type          text COLLATE "C" NOT NULL,
  status        text COLLATE "C" NOT NULL,
  step          text,
  attempt       integer NOT NULL,
  max_attempts  integer NOT NULL,
  run           integer NOT NULL,
  priority      integer NOT NULL,
  tenant        text,
  worker        text,
  error_code    text,
  error_message text,
  result_url    text,
  created_at    timestamptz NOT NULL,
  run_at        timestamptz NOT NULL,
  started_at    timestamptz,
  finished_at   timestamptz,
  updated_at    timestamptz NOT NULL,
  revision      integer NOT NULL,
  hash          text NOT NULL
) WITH (fillfactor = 80);

-- Keyset pages: everything, one status, one type. The id breaks ties of rows made in the same millisecond.
CREATE INDEX tasks_by_age ON rollcall.tasks (created_at, task_id);
CREATE INDEX tasks_by_status ON rollcall.tasks (status, created_at, task_id);
CREATE INDEX tasks_by_type ON rollcall.tasks (type, created_at, task_id);

-- The timeout index: one row per open task, the deadline that fires next. Finding due work costs what is due.
CREATE TABLE rollcall.deadlines (
  task_id uuid PRIMARY KEY,
  due_at  timestamptz NOT NULL,
  timer   text NOT NULL,
  attempt integer NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);
CREATE INDEX deadlines_due ON rollcall.deadlines (due_at, task_id);

-- Tasks that cannot be folded: their rows stand still until somebody has looked.
CREATE TABLE rollcall.set_aside (
  task_id      uuid PRIMARY KEY,
  revision     integer NOT NULL,
  reason       text NOT NULL,
  set_aside_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Where each projector stands. The row is its checkpoint and its lease: both move in the transaction that
-- writes the rows, by compare-and-set, so two projectors can never both move it.
CREATE TABLE rollcall.projectors (
  name       text PRIMARY KEY,
  log_id     uuid,
  position   text,
  event_id   uuid,
  event_at   timestamptz,
  holder     uuid,
  held_until timestamptz,
  moved_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Work state: not the fold. Losing it delays tasks and never loses or doubles an outcome.

-- May be offered now.
CREATE TABLE rollcall.ready (
  task_id       uuid PRIMARY KEY,
  type          text COLLATE "C" NOT NULL,
  priority      integer NOT NULL,
  pending_since timestamptz NOT NULL,
  attempt       integer NOT NULL,
  times_offered integer NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX ready_order ON rollcall.ready (type, priority DESC, pending_since, task_id);

-- Handed towards a worker, not yet seen started.
CREATE TABLE rollcall.offers (
  task_id       uuid PRIMARY KEY,
  type          text COLLATE "C" NOT NULL,
  priority      integer NOT NULL,
  pending_since timestamptz NOT NULL,
  attempt       integer NOT NULL,
  times_offered integer NOT NULL,
  claim_id      text COLLATE "C" NOT NULL,
  held_until    timestamptz NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX offers_by_claim ON rollcall.offers (claim_id);
CREATE INDEX offers_by_end ON rollcall.offers (held_until);

-- Signals of running tasks: one row each, however long they run.
CREATE TABLE rollcall.leases (
  task_id           uuid PRIMARY KEY,
  attempt           integer NOT NULL,
  token_hash        text NOT NULL,
  claim_id          text COLLATE "C" NOT NULL,
  worker            text NOT NULL,
  lease_ms          bigint NOT NULL,
  held_until        timestamptz NOT NULL,
  lost              boolean NOT NULL DEFAULT false,
  last_heartbeat_at timestamptz,
  progress          real
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX leases_by_end ON rollcall.leases (held_until);
CREATE INDEX leases_by_claim ON rollcall.leases (claim_id);

-- When the timers last looked. A gap means that workers could not be heard either: they get a lease first.
CREATE TABLE rollcall.timer_ticks (
  one       boolean PRIMARY KEY DEFAULT true CHECK (one),
  ticked_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO rollcall.timer_ticks DEFAULT VALUES;
