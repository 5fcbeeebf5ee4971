TRAINER_MPI=$(@{mpi} 2>&1) || die "no MPI on $HOSTNAME: load its module, or use horovod-gloo, which needs none: $TRAINER_MPI"
export TRAINER_MPI OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma # a user's containers cannot read each other's memory
