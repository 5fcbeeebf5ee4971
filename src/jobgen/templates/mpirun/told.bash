export OMPI_MCA_odls_base_sigkill_timeout=15 PRTE_MCA_odls_base_sigkill_timeout=15 # mpirun would give ranks one second to save
