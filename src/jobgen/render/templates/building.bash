@{head}

# Settings. Set at submission, a variable wins:
# SLIPWAY_VARIANT=cpu @{submit} @{path}
@{settings}

# The site, @{site}. Exports that its nodes need stand here; set outside, a variable wins.
@{site_lines}

@{library}
source "$lib/build.bash"

@{calls}
