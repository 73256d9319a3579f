"""The life of an execution, one file per verb: create, join, plan, admit, settle, reap, retain.

`batch`, `groups`, `rows`, `crowds` and `named_secrets` belong to create; `broken` and `missed` to
plan; `outcomes` to settle. Claim has no file of its own: it is `hourbell.dispatch`.
"""
