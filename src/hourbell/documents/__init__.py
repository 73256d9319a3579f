"""The documents that users send and get: JSON objects to checked values, and back.

This is the one door into the model. Whatever comes through it has been looked at in full: every
wrong field of a document is answered at once, with its path, and nothing that could never run gets
in. Everything here is pure; rules and zones are asked of `timing`.

    reader          one object of a document, field by field, with every problem noted
    jobs            the body of a create or a PUT → NewJob
    schedules, actions, policies   its parts
    common_case     the same for the plainest jobs, several times as fast
    changes         an update, a whole new document, or the override of one run → what it makes of a job
    settings        tenants, queues and targets
    render          jobs, executions and settings → what the API, the CLI and the dashboard show

A few decisions:

- An `at` in the past runs at once, because a client that is a second late means "now"; one that
  is more than a year old is refused as a mistake.
- A window is closed: a run at exactly `starts_at` or `ends_at` happens.
- Intervals count from `starts_at`, or else from the creation: the first run is then one interval
  later. The anchor is kept, so updating something else moves no run.
- An update is a merge patch (RFC 7396): what is given changes, null sets back to the default.
  Naming another kind of schedule, action or backoff replaces the old kind with all its fields;
  `body`, `payload` and `notifications` are replaced whole, `headers` and `labels` name by name.
- What would have no effect is refused rather than ignored: an overlap policy of a job that runs
  once, a DST policy of an interval, an initial delay beside a list of delays.
"""
