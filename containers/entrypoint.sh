#!/bin/sh
# What `docker run` and `apptainer run` start: the given command, in this process's place, so that arguments, signals and exit
# codes are its own. Without one, help.
[ $# -gt 0 ] || set -- trainer --help
exec "$@"
