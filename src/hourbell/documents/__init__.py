"""The documents of the API: JSON objects to validated values, and back.

This is the only entry into the model. Documents are validated in full: every invalid field is
reported at once, with its path, and a job that could never run is rejected. Everything here is
pure; `timing` validates rules and zones.

        fields          how a document is declared: one line per field yields reader, renderer and
                        JSON Schema
        kinds           the types of values that fields have
    problems        all errors of a document
    jobs            the body of a create or a PUT → NewJob
    schedules, actions, policies   its parts
    common_case     the same for the simplest jobs, several times faster
    changes         a patch or a full new document, applied to a job
    runs            overrides for one run, and backfills
    pauses          pause and resume, for one job or for all that match a filter
    operations      bulk operations
    previews, words     previewing a schedule, and describing it in plain English
    settings        tenants, queues and targets
    calendars, monitors, keys, secrets, dead_letters, completions, execution_groups
                    self-explanatory
    render          jobs and executions → what the API, the CLI and the dashboard show

Decisions:

- An `at` in the past runs immediately, because a client that is a second late means "now"; one that
  is more than a year old is rejected as a mistake.
- Windows are inclusive: a run at exactly `starts_at` or `ends_at` happens.
- Intervals count from `starts_at`, or else from the creation: the first run is then one interval
  later. The anchor is stored, so unrelated updates do not move any run.
- An update is a merge patch (RFC 7396): given fields change, null resets to the default. Giving
  another kind of schedule, action or backoff replaces the old kind with all its fields; `body`,
  `payload` and `notifications` are replaced as a whole, `headers` and `labels` name by name.
- Fields without effect are rejected rather than ignored: an overlap policy of a one-time job, a DST
  policy of an interval, an initial delay together with a list of delays.
"""
