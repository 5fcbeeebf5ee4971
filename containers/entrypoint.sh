#!/bin/sh
# Entry point of `docker run` and `apptainer run`: replace this process with the given command, so
# that arguments, signals and the exit code pass through. Without a command, print the trainer's
# help.
[ $# -gt 0 ] || set -- trainer --help
exec "$@"
