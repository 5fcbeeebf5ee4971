"""What a session looks for in a script: what it cannot restore, or would count wrongly."""
