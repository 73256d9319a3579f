"""Access control, egress rules and secrets.

access     roles and their permissions
egress     addresses that webhooks may call
sealing    encryption of secrets at rest
secrets    secret placeholders in templates, and redaction of secret values
"""
