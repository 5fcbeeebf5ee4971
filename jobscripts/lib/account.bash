# shellcheck shell=bash
# What an attempt has used: one line in the job's log, and logs/N/account.json for `jobgen status`;
# and when it began and ended, for goodput.jsonl.
#
# Hours are those for which this script had its nodes: from its start, of a client from when the
# nodes had come, to the end of the launch. A scheduler counts some seconds more, before and behind.
# What the GPUs did is sampled on the nodes (gpu_usage.py), while the launch runs.

# report_usage: say and keep what this attempt has used. Nothing where no rank has been started.
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
        said+="; $(plural $((nnodes * gpus_per_node)) GPU) that the job was given stayed idle"
    fi
    log "$said"
    usage_json >"$log_dir/account.json" || : # the disk may be full
}

# record_launch_start: add a line to goodput.jsonl: since when this attempt has had its nodes, and
# how many.
record_launch_start() {
    append_goodput '"began": %s, "nodes": %d, "spares": %d' "$began_at" "$nnodes" \
        "${#spare_nodes[@]}"
}

# record_attempt_end: add a line to goodput.jsonl: this attempt ends now. Sets began_at, for the
# next one.
record_attempt_end() {
    began_at=$(epoch_seconds)
    append_goodput '"ended": %s' "$began_at"
}

# append_goodput FORMAT VALUE...: of this attempt; the disk may be full.
append_goodput() {
    [ ! -e "$RUN_DIR/goodput.jsonl" ] || [ -f "$RUN_DIR/goodput.jsonl" ] || return 0
    # shellcheck disable=SC2059 # a format it is
    printf "{\"attempt\": %d, $1}\n" "$attempt" "${@:2}" 2>/dev/null \
        >>"$RUN_DIR/goodput.jsonl" || :
}

# epoch_seconds: in seconds since 1970.
epoch_seconds() {
    date +%s.%3N
}

# describe_gpus COUNT: of the job's GPUs, as far as they could be read.
describe_gpus() {
    [ "$gpus_seen" != 0 ] || return 0
    local some=''
    [ "$gpus_seen" -ge "$1" ] || some=" ($gpus_seen of $1 could be read)"
    [ "$1" = 1 ] && printf '; GPU' || printf '; GPUs'
    printf ' %d %% busy, %s of %s GiB at most%s\n' \
        "$busy" "$(format_gibibytes "$memory")" "$(format_gibibytes "$memory_total")" "$some"
}

# usage_json: the same in numbers; memory is in MiB, 0 where no GPU could be read.
usage_json() {
    printf '{"nodes": %d, "count": %d, "unit": "%s", "seconds": %d, "gpus_seen": %d, ' \
        "$nnodes" "$count" "$unit" "$seconds" "$gpus_seen"
    printf '"busy": %d, "memory": %d, "memory_total": %d}\n' "$busy" "$memory" "$memory_total"
}

# count_used_gpus: how many of each node count: those that the scheduler has given, else those that
# the ranks take, if they run on GPUs.
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

# read_gpu_usage: add up what gpu_usage.py has left. Sets gpus_seen; busy, the mean of all samples
# in percent; and memory and memory_total, in MiB, of the GPU that was fullest.
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

# plural COUNT NAME
plural() {
    local s=s
    [ "$1" != 1 ] || s=''
    echo "$1 $2$s"
}

# format_duration SECONDS: in the unit that one would say it in.
format_duration() {
    if (($1 < 60)); then
        echo "$1 s"
    elif (($1 < 3600)); then
        echo "$(format_quotient "$1" 60) min"
    else
        echo "$(format_quotient "$1" 3600) h"
    fi
}

# format_quotient A B: with one decimal from 10 on, three below 0.1, else two.
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

# format_gibibytes MIB: in GiB, with a decimal below 10.
format_gibibytes() {
    if (($1 < 10 * 1024)); then
        printf '%d.%d\n' $((($1 * 10 + 512) / 1024 / 10)) $((($1 * 10 + 512) / 1024 % 10))
    else
        echo $((($1 + 512) / 1024))
    fi
}
