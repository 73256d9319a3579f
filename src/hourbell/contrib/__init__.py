"""Hourbell as a part of frameworks; each package needs its framework, and nothing else imports it."""
