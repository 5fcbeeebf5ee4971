"""Commands for trained models: ``trainer evaluate`` and ``trainer export``."""
