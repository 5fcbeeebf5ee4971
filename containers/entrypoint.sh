#!/bin/sh
# Run by `docker run` and `apptainer run`: replace this process by the given command, so that its
# arguments, signals and exit code are passed through. Without a command, print the trainer's help.
[ $# -gt 0 ] || set -- trainer --help
exec "$@"
