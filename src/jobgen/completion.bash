# Completion of jobgen for Bash: source <(jobgen completion)
# For zsh, before that: autoload -U bashcompinit && bashcompinit
_jobgen() {
    local current=$2 previous=$3 choices=''
    case $previous in
        jobgen) choices='@{commands}' ;;
        --site) choices=$(compgen -G 'jobscripts/sites/*.toml') ;;
        --set | --output) ;;
        --metric) choices='accuracy loss' ;;
        --goal) choices='max min' ;;
        --scaling) choices='strong weak' ;;
        *) case ${COMP_WORDS[1]}:$current in
            @{options}
            render:* | submit:* | study:* | sweep:*) choices=$(compgen -G 'jobscripts/specs/*.toml') ;;
            status:* | logs:* | cancel:*) choices=$(compgen -G "${SLIPWAY_OUTPUT:-runs}/*") ;;
        esac ;;
    esac
    # Specs and sites of the project are known by their names alone.
    [[ $current == */* ]] || choices=$(sed --expression='s|^jobscripts/.*/\(.*\)\.toml$|\1|' <<<"$choices")
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
}
complete -o default -F _jobgen jobgen
