@{head}

# Settings. A variable that is set at submission takes precedence:
# SLIPWAY_VARIANT=cpu @{submit} @{path}
@{settings}

# Site @{site}: launcher, container runtime and environment of its nodes.
@{site_lines}

@{library}
source "$lib/build.bash"

@{calls}
