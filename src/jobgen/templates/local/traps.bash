trap 'interrupted=1 && kill -TERM "$step"' TERM INT # the ranks save, then end
