if [ -z "${USE_CONTAINER:-}" ]; then
    USE_CONTAINER=0
    if [ ! -r "$IMAGE" ]; then echo "@{name}: no $IMAGE, so in $VENV; \`make image\` builds one"
    elif ! apptainer exec "$IMAGE" true; then echo "@{name}: apptainer cannot run $IMAGE here (see above), so in $VENV"
    else USE_CONTAINER=1; echo "@{name}: in $IMAGE; USE_CONTAINER=0 runs in $VENV"; fi
fi
