nodes=(127.0.0.1)
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000)) # clients get 32768 and up
