export OMPI_MCA_odls_base_sigkill_timeout=15 # mpirun passes TERM on, and would give ranks one second to save; version 5 none:
! env --block-signal=TERM true 2>/dev/null || export DEAF='env --block-signal=TERM' PRTE_MCA_prte_launch_agent='env --block-signal=TERM prted'
