@{head}

# Settings. A variable that is set at submission takes precedence:
# SLIPWAY_VARIANT=cpu @{submit} @{path}
@{settings}

# Site @{site}: variables for its nodes. One that is set at submission takes precedence.
@{site_lines}

@{library}
source "$lib/build.bash"

@{calls}
