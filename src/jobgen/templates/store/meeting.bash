@{head}
export MASTER_ADDR MASTER_PORT=$((20000 + @{number} % 10000)) # differs from job to job; clients get 32768 and up
