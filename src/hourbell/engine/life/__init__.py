"""The life of an execution, one file per verb: create, join, plan, admit, settle, reap, retain.

`create` is a package; `references` belongs to it, `broken` to join and plan, `outcomes` to settle.
Claim has no file of its own: it is `hourbell.dispatch`.
"""
