script=$(realpath -- "$0")
