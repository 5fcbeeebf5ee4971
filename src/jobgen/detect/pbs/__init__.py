"""Detection of a site with OpenPBS, PBS Professional or Torque."""
