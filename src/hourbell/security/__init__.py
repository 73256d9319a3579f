"""What keeps strangers out and secrets in.

access     roles, and what each may do
egress     which addresses webhooks may call
sealing    secrets at rest
secrets    templates that name secrets, and the redaction of their values
"""
