# shellcheck shell=bash
# What an attempt has used: one line in the job's log, logs/N/account.json for `jobgen status`, and
# the attempt's start and end in goodput.jsonl.
#
# Hours are the time for which this script had its nodes: from job start (for a Dask client, from
# when the nodes arrived) to the end of the launch. A scheduler counts some seconds more before and
# after that. gpu_usage.py samples the GPUs on the nodes while the launch runs.

# report_usage: log and write what this attempt has used. Does nothing if no rank was started.
report_usage() {
    local seconds=$((SECONDS - ${held_since:-0})) unit=core count=$cpus gpus said
    [ -n "${launch_pid:-}" ] || return 0
    record_attempt_end
    read_gpu_usage
    gpus=$(count_used_gpus)
    [ "$gpus" = 0 ] || unit=GPU count=$gpus
    said="used $(plural "$nnodes" node) x $(plural "$count" "$unit")"
    said+=" x $(format_duration "$seconds")"
    said+=" = $(format_quotient $((nnodes * count * seconds)) 3600) $unit-hours"
    if [ "$unit" = GPU ]; then
        said+=$(describe_gpus $((nnodes * count)))
    elif [ "$gpus_per_node" != 0 ]; then
        said+="; $(plural $((nnodes * gpus_per_node)) GPU) of the job stayed idle"
    fi
    log "$said"
    usage_json >"$log_dir/account.json" || : # the disk may be full
}

# record_launch_start: add a line to goodput.jsonl: since when this attempt has had its nodes, and
# how many nodes and spare nodes.
record_launch_start() {
    append_goodput '"began": %s, "nodes": %d, "spares": %d' "$began_at" "$nnodes" \
        "${#spare_nodes[@]}"
}

# record_attempt_end: add a line to goodput.jsonl: when this attempt ended. Sets began_at to the
# same time, for the next attempt.
record_attempt_end() {
    began_at=$(epoch_seconds)
    append_goodput '"ended": %s' "$began_at"
}

# append_goodput FORMAT VALUE...: append a line of this attempt to goodput.jsonl. A full disk is not
# an error.
append_goodput() {
    [ ! -e "$RUN_DIR/goodput.jsonl" ] || [ -f "$RUN_DIR/goodput.jsonl" ] || return 0
    # shellcheck disable=SC2059 # the argument is a format
    printf "{\"attempt\": %d, $1}\n" "$attempt" "${@:2}" 2>/dev/null \
        >>"$RUN_DIR/goodput.jsonl" || :
}

# epoch_seconds: print the time in seconds since 1970, with milliseconds.
epoch_seconds() {
    date +%s.%3N
}

# describe_gpus COUNT: print the utilization and memory of the job's COUNT GPUs, as far as they
# could be read.
describe_gpus() {
    [ "$gpus_seen" != 0 ] || return 0
    local some=''
    [ "$gpus_seen" -ge "$1" ] || some=" ($gpus_seen of $1 could be read)"
    [ "$1" = 1 ] && printf '; GPU' || printf '; GPUs'
    printf ' %d %% busy, %s of %s GiB at most%s\n' \
        "$busy" "$(format_gibibytes "$memory")" "$(format_gibibytes "$memory_total")" "$some"
}

# usage_json: print the usage as JSON. Memory is in MiB, 0 if no GPU could be read.
usage_json() {
    printf '{"nodes": %d, "count": %d, "unit": "%s", "seconds": %d, "gpus_seen": %d, ' \
        "$nnodes" "$count" "$unit" "$seconds" "$gpus_seen"
    printf '"busy": %d, "memory": %d, "memory_total": %d}\n' "$busy" "$memory" "$memory_total"
}

# count_used_gpus: print how many GPUs of each node are accounted: those that the scheduler has
# allocated, or else those that the ranks use. Prints 0 if the ranks run on CPUs.
count_used_gpus() {
    local count=$gpus_per_node
    if [ "$SLIPWAY_DEVICE" = cpu ]; then
        count=0
    elif [ "$count" = 0 ] && [ "$scheduler" != local ] &&
        { [ "$SLIPWAY_DEVICE" = cuda ] || [ "$gpus_seen" != 0 ]; }; then
        count=$((ranks_per_node * devices_per_rank))
    fi
    echo "$count"
}

# read_gpu_usage: add up the samples that gpu_usage.py has written. Sets gpus_seen; busy, the mean
# utilization in percent; and memory and memory_total, in MiB, of the GPU that used the most memory.
read_gpu_usage() {
    local file host gpu samples percent used total all=0 sum=0
    local number='(0|[1-9][0-9]{0,11})'
    local -A seen=()
    gpus_seen=0 busy=0 memory=0 memory_total=0
    for file in "$log_dir"/gpus.*; do
        [ -f "$file" ] || continue
        host=${file##*/gpus.}
        while read -r gpu samples percent used total; do
            [[ "$samples $percent $used $total" =~ ^[1-9][0-9]{0,8}(\ $number){3}$ ]] ||
                continue # the disk was full
            seen[${host%.*} $gpu]=1
            all=$((all + samples))
            sum=$((sum + percent))
            ((used < memory)) || memory=$used memory_total=$total
        done <"$file"
    done
    gpus_seen=${#seen[@]}
    [ "$all" = 0 ] || busy=$(((sum + all / 2) / all))
}

# plural COUNT NAME: print the count and the name, with an s unless COUNT is 1.
plural() {
    local s=s
    [ "$1" != 1 ] || s=''
    echo "$1 $2$s"
}

# format_duration SECONDS: print a duration in seconds, minutes or hours, depending on its size.
format_duration() {
    if (($1 < 60)); then
        echo "$1 s"
    elif (($1 < 3600)); then
        echo "$(format_quotient "$1" 60) min"
    else
        echo "$(format_quotient "$1" 3600) h"
    fi
}

# format_quotient A B: print A / B with one decimal place from 10 on, three below 0.1, otherwise
# two.
format_quotient() {
    local digits=2 scale=100 value
    if (($1 >= 10 * $2)); then
        digits=1 scale=10
    elif ((10 * $1 < $2)); then
        digits=3 scale=1000
    fi
    value=$(((scale * $1 + $2 / 2) / $2))
    printf '%d.%0*d\n' $((value / scale)) "$digits" $((value % scale))
}

# format_gibibytes MIB: print MiB as GiB, with one decimal place below 10.
format_gibibytes() {
    if (($1 < 10 * 1024)); then
        printf '%d.%d\n' $((($1 * 10 + 512) / 1024 / 10)) $((($1 * 10 + 512) / 1024 % 10))
    else
        echo $((($1 + 512) / 1024))
    fi
}
