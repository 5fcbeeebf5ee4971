cd -- "$PBS_O_WORKDIR" # PBS starts at home
