"""No models: Hourbell migrates its own tables. Django sends `post_migrate` only to apps with this module."""
