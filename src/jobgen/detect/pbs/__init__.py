"""A cluster of OpenPBS, PBS Professional or Torque: what it says of itself, and the site that this makes."""
