"""The life of an execution, one file per verb: create, join, plan, admit, settle, reap, retain.

`create` is a package; `groups`, `due_counts` and `named_secrets` belong to it, `broken` and
`missed` to plan, `outcomes` to settle. Claim has no file of its own: it is `hourbell.dispatch`.
"""
