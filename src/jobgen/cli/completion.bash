# Bash completion of jobgen: source <(jobgen completion)
# In zsh, first run: autoload -U bashcompinit && bashcompinit
_jobgen() {
    local current=$2 previous=$3 choices=''
    case $previous in
        jobgen) choices='@{commands}' ;;
        --site) choices=$(compgen -G 'jobscripts/sites/*.toml') ;;
        --set | --output) ;;
        --for) choices='ddp lightning accelerate transformers' ;;
        --metric) choices='accuracy loss' ;;
        --goal) choices='max min' ;;
        --scaling) choices='strong weak' ;;
        *) case ${COMP_WORDS[1]}:$current in
            @{options}
            render:* | submit:* | study:* | sweep:*)
                choices=$(compgen -G 'jobscripts/specs/*.toml')
                ;;
            status:* | logs:* | cancel:*) choices=$(compgen -G "${SLIPWAY_OUTPUT:-runs}/*") ;;
        esac ;;
    esac
    # Complete specs and sites of the project by name, without folder and suffix.
    [[ $current == */* ]] ||
        choices=$(sed --expression='s|^jobscripts/.*/\(.*\)\.toml$|\1|' <<<"$choices")
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
}
complete -o default -F _jobgen jobgen
