"""No models: Hourbell migrates its own tables. Django sends `post_migrate` to apps with this module."""
