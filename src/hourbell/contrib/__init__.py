"""Integrations with frameworks; each package needs its framework, and nothing else imports it."""
