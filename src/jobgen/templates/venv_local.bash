if [ -z "$IMAGE" ]; then # built on every node at every start; with WHEELHOUSE=FOLDER without a network
    VENV=$scratch/venv PATH=$scratch/venv/bin:$PATH
    "${per_node[@]}" env PIP_NO_CACHE_DIR=1 VENV="$VENV" VARIANT="${VARIANT:-cuda}" build/setup train || die "no environment on every node: see above"
fi
